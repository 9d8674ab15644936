"""A link inside one process: two ends, no bytes on a wire, the same bounds."""

from __future__ import annotations

import asyncio
import collections

from longspan.errors import RingError
from longspan.ring.frame import Frame
from longspan.ring.link import Link, LinkStatistics

QUEUE_FRAMES = 64


class InProcessLink(Link):
    """One end of a pair made by `pair`."""

    def __init__(self, name: str) -> None:
        self.statistics = LinkStatistics()
        self._name = name
        self._incoming: collections.deque[Frame] = collections.deque()
        self._changed = asyncio.Event()
        self._closed = False
        self._other: InProcessLink = self

    @property
    def peer(self) -> str:
        """Name of the other end."""
        return self._other._name

    async def send(self, frame: Frame) -> None:
        """See `Link.send`."""
        waiting = self._other._incoming
        while not self._over and len(waiting) >= QUEUE_FRAMES:
            await self._change()
        if not self.send_at_once(frame):
            raise RingError(f"the link to {self.peer} is closed")

    def send_at_once(self, frame: Frame) -> bool:
        """See `Link.send_at_once`."""
        if self._over or len(self._other._incoming) >= QUEUE_FRAMES:
            return False
        self._other._incoming.append(frame)
        self._other._changed.set()
        self.statistics.frames_sent += 1
        self.statistics.bytes_sent += frame.size
        return True

    async def receive(self) -> Frame:
        """See `Link.receive`. What the other end sent before it closed still arrives."""
        while not self._closed and not self._incoming:
            if self._other._closed:
                raise RingError(f"the link to {self.peer} was closed by the peer")
            await self._change()
        if self._closed:
            raise RingError(f"the link to {self.peer} is closed")
        frame = self._incoming.popleft()
        self._other._changed.set()
        self.statistics.frames_received += 1
        self.statistics.bytes_received += frame.size
        self.statistics.queued = len(self._incoming)
        return frame

    async def close(self) -> None:
        """See `Link.close`."""
        self._closed = True
        self._changed.set()
        self._other._changed.set()

    @property
    def _over(self) -> bool:
        return self._closed or self._other._closed

    async def _change(self) -> None:
        """Wait until this end has frames, room or an end that it did not have before."""
        self._changed.clear()
        await self._changed.wait()


def pair(left: str = "left", right: str = "right") -> tuple[InProcessLink, InProcessLink]:
    """Two connected ends."""
    a, b = InProcessLink(left), InProcessLink(right)
    a._other, b._other = b, a
    return a, b
