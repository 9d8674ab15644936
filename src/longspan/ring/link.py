"""The seam between the ring and whatever carries its frames."""

from __future__ import annotations

import abc
import dataclasses

from longspan.ring.frame import Frame


@dataclasses.dataclass
class LinkStatistics:
    """What went over a link so far. round_trip: seconds, of the newest ping; None before the first."""

    frames_sent: int = 0
    bytes_sent: int = 0
    frames_received: int = 0
    bytes_received: int = 0
    queued: int = 0
    round_trip: float | None = None


class Link(abc.ABC):
    """Ordered, reliable frames both ways. Bounded: a full link makes the sender wait, nothing is dropped."""

    statistics: LinkStatistics

    @abc.abstractmethod
    async def send(self, frame: Frame) -> None:
        """Send after everything sent before. Waits while the link is full. Raises RingError when it is closed."""

    @abc.abstractmethod
    def send_at_once(self, frame: Frame) -> bool:
        """Send without waiting, if that is possible now; False when it is not, also on a closed link."""

    @abc.abstractmethod
    async def receive(self) -> Frame:
        """The next frame. Raises RingError when the link was lost, ProtocolError on bytes that are no frame."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Close both directions. Calling it twice is allowed."""

    @property
    @abc.abstractmethod
    def peer(self) -> str:
        """The other end, for messages to a person."""
