"""Time in which this machine did anything: a run takes long, and a machine may sleep or stand still in between."""

from __future__ import annotations

import asyncio
import time

TICK_SECONDS = 0.25
STANDSTILL_SECONDS = 5.0


class Clock:
    """Notices when everything here stood still. standstill: seconds of that so far."""

    def __init__(self) -> None:
        self._tick = time.monotonic()
        self._went_on = 0.0
        self.standstill = 0.0

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.look()

    def look(self) -> float:
        """Now, in seconds."""
        now = time.monotonic()
        if now - self._tick > STANDSTILL_SECONDS:
            self.standstill += now - self._tick
            self._went_on = now
        self._tick = now
        return now

    def since(self, moment: float) -> float:
        """Seconds since a moment, or since everything went on after that."""
        now = self.look()
        return now - max(moment, self._went_on)
