"""A link that behaves as if the other end were far away."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable

from longspan.errors import RingError
from longspan.ring.frame import Frame
from longspan.ring.link import Link, LinkStatistics

LINE_FRAMES = 4096
"""Frames that may be on their way at the same time: more than a ring ever has in flight, so that the delay is all
that a long line adds, and yet a bound, for an end that does not read."""


class DelayedLink(Link):
    """Sends every frame `seconds` later; order is kept, and frames overlap in flight as on a long line.

    Receiving is not delayed: the other end delays what it sends.
    """

    def __init__(self, link: Link, seconds: float) -> None:
        self._link = link
        self._seconds = seconds
        self._in_flight: collections.deque[tuple[float, Frame]] = collections.deque()
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._error: RingError | None = None
        self._sender = asyncio.create_task(self._run())

    @property
    def statistics(self) -> LinkStatistics:  # type: ignore[override]
        """Those of the link beneath."""
        return self._link.statistics

    @property
    def peer(self) -> str:
        """The other end."""
        return self._link.peer

    def take_early(self, taker: Callable[[Frame], bool]) -> bool:
        """See `Link.take_early`."""
        return self._link.take_early(taker)

    async def send(self, frame: Frame) -> None:
        """Put the frame on its way."""
        due = asyncio.get_running_loop().time() + self._seconds
        while self._error is None and len(self._in_flight) >= LINE_FRAMES:
            self._room.clear()
            await self._room.wait()
        if self._error is not None:
            raise self._error
        self._in_flight.append((due, frame))
        self._wake.set()

    def send_at_once(self, frame: Frame) -> bool:
        """See `Link.send_at_once`."""
        if self._error is not None or len(self._in_flight) >= LINE_FRAMES:
            return False
        self._in_flight.append((asyncio.get_running_loop().time() + self._seconds, frame))
        self._wake.set()
        return True

    async def receive(self) -> Frame:
        """See `Link.receive`."""
        return await self._link.receive()

    async def close(self) -> None:
        """Close at once; what is still in flight is lost, as when a line is cut."""
        self._sender.cancel()
        self._fail(RingError(f"the link to {self.peer} is closed"))
        await self._link.close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                while not self._in_flight:
                    self._wake.clear()
                    await self._wake.wait()
                due, frame = self._in_flight[0]
                wait = due - loop.time()
                if wait > 0:
                    await asyncio.sleep(wait)
                self._in_flight.popleft()
                self._room.set()
                await self._link.send(frame)
        except RingError as error:
            self._fail(error)

    def _fail(self, error: RingError) -> None:
        self._error = self._error or error
        self._room.set()


def delayed(link: Link, milliseconds: float) -> Link:
    """The link itself, or a delayed one when `milliseconds` is above zero."""
    return DelayedLink(link, milliseconds / 1000) if milliseconds > 0 else link
