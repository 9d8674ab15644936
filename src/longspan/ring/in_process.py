"""A link inside one process: two ends, no bytes on a wire, the same bounds."""

from __future__ import annotations

import asyncio

from longspan.errors import RingError
from longspan.ring.frame import Frame
from longspan.ring.link import Link, LinkStatistics

QUEUE_FRAMES = 64


class InProcessLink(Link):
    """One end of a pair made by `pair`."""

    def __init__(self, name: str) -> None:
        self.statistics = LinkStatistics()
        self._name = name
        self._incoming: asyncio.Queue[Frame | None] = asyncio.Queue(QUEUE_FRAMES)
        self._closed = asyncio.Event()
        self._other: InProcessLink = self

    @property
    def peer(self) -> str:
        """Name of the other end."""
        return self._other._name

    async def send(self, frame: Frame) -> None:
        """See `Link.send`."""
        if self._closed.is_set() or self._other._closed.is_set():
            raise RingError(f"the link to {self.peer} is closed")
        put = asyncio.ensure_future(self._other._incoming.put(frame))
        closed = asyncio.ensure_future(self._other._closed.wait())
        await asyncio.wait((put, closed), return_when=asyncio.FIRST_COMPLETED)
        closed.cancel()
        if not put.done():
            put.cancel()
            raise RingError(f"the link to {self.peer} was closed by the peer")
        self.statistics.frames_sent += 1
        self.statistics.bytes_sent += sum(map(len, frame.parts()))

    async def receive(self) -> Frame:
        """See `Link.receive`."""
        if self._closed.is_set():
            raise RingError(f"the link to {self.peer} is closed")
        frame = await self._incoming.get()
        if frame is None:
            self._closed.set()
            raise RingError(f"the link to {self.peer} was closed by the peer")
        self.statistics.frames_received += 1
        self.statistics.bytes_received += sum(map(len, frame.parts()))
        return frame

    async def close(self) -> None:
        """See `Link.close`."""
        for end in (self, self._other):
            if not end._closed.is_set():
                end._closed.set()
                if end._incoming.full():
                    end._incoming.get_nowait()
                end._incoming.put_nowait(None)


def pair(left: str = "left", right: str = "right") -> tuple[InProcessLink, InProcessLink]:
    """Two connected ends."""
    a, b = InProcessLink(left), InProcessLink(right)
    a._other, b._other = b, a
    return a, b
