"""Places for the iterations that a stage holds."""

from __future__ import annotations

import asyncio
import threading


class Room:
    """A bounded number of places. Taken on the event loop, given back on any thread.

    places: how many iterations may be held, waiting, running or on their way out. given_back: so far.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._taken = 0
        self._waiting = 0
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._freed = asyncio.Event()
        self.given_back = 0

    def try_take(self) -> bool:
        """Take a place if one is free and nobody waits for one."""
        with self._lock:
            if self._waiting or self._taken - self.given_back >= self._places:
                return False
            self._taken += 1
            return True

    async def take(self) -> None:
        """Take a place, waiting for it."""
        while True:
            with self._lock:
                if self._taken - self.given_back < self._places:
                    self._taken += 1
                    return
                self._waiting += 1
                self._freed.clear()
            try:
                await self._freed.wait()
            finally:
                self._waiting -= 1

    def give_back(self) -> int:
        """Give a place back; how many were given back so far."""
        with self._lock:
            self.given_back += 1
            if self._waiting:
                self._loop.call_soon_threadsafe(self._freed.set)
            return self.given_back
