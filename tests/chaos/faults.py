"""What can happen to a ring."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable

from tests.chaos.processes import SILENCE, Ring

WEIGHTS = {
    "kill": 4,
    "stop": 3,
    "cut": 5,
    "stall": 2,
    "half-close": 4,
    "corrupt": 4,
    "fill": 2,
    "replace": 2,
    "coordinator killed": 1,
    "coordinator stopped": 1,
}
"""How often each comes, of all."""

LONG_STALL = SILENCE + 0.8
"""Seconds after which a stage that stands still was given up."""

NARROW_BYTES = 40_000
"""A second, through a link whose queue is being filled."""


def schedule(count: int, chance: random.Random) -> list[str]:
    """So many faults in an order of chance: every kind once, when there are enough, and more by weight."""
    kinds = list(WEIGHTS)
    chance.shuffle(kinds)
    kinds = kinds[:count] + chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=max(0, count - len(kinds)))
    chance.shuffle(kinds)
    return kinds


class Faults:
    """Does to a ring what it is told; stages and moments are of chance.

    crowd: many requests at once, until all of them have ended. restart: ends the coordinator with a signal, and
    starts it again.
    """

    def __init__(
        self,
        ring: Ring,
        chance: random.Random,
        *,
        crowd: Callable[[], Awaitable[None]],
        restart: Callable[[signal.Signals], Awaitable[None]],
    ) -> None:
        self._ring = ring
        self._chance = chance
        self._crowd = crowd
        self._restart = restart

    async def inflict(self, kind: str) -> None:
        """Do it, to one of the stages or to the link before it; what lasts is over afterwards."""
        ring, chance = self._ring, self._chance
        index = chance.randrange(len(ring.stages))
        stage, relay = ring.stages[index], ring.relays[index]
        match kind:
            case "kill":
                await stage.kill()
                await asyncio.sleep(chance.uniform(0.0, 0.5))
                await stage.start()
            case "stop":
                stage.send(signal.SIGSTOP)
                await asyncio.sleep(chance.choice((0.3, LONG_STALL)))
                stage.send(signal.SIGCONT)
            case "cut":
                relay.cut()
            case "stall":
                await relay.stall(chance.choice((0.3, LONG_STALL)))
            case "half-close":
                relay.half_close()
            case "corrupt":
                relay.corrupt()
            case "fill":
                relay.narrow(NARROW_BYTES)
                try:
                    await self._crowd()
                finally:
                    relay.widen()
            case "replace":
                # The old process hangs and keeps its links while another one takes its place.
                stage.send(signal.SIGSTOP)
                try:
                    await ring.replace(index)
                    await asyncio.sleep(chance.uniform(0.0, LONG_STALL))
                finally:
                    await stage.kill()
            case "coordinator killed":
                await self._restart(signal.SIGKILL)
            case "coordinator stopped":
                await self._restart(signal.SIGTERM)
            case _:
                raise ValueError(kind)
