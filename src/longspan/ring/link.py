"""The seam between the ring and whatever carries its frames."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable

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

    def take_early(self, taker: Callable[[Frame], bool]) -> bool:
        """Offer each frame to `taker` as it arrives, on the loop, if none waits; what it declines is received.

        It spares a frame the wake-up of the task that receives. False from links that cannot do so. `taker` must
        not raise.
        """
        return False

    @abc.abstractmethod
    async def send(self, frame: Frame) -> None:
        """Send after everything sent before. Waits while the link is full. Raises RingError when it is closed."""

    @abc.abstractmethod
    def send_at_once(self, frame: Frame) -> bool:
        """Send without waiting, if that is possible now; False when it is not, also on a closed link."""

    def send_from_thread(self, frame: Frame) -> bool:
        """As `send_at_once`, called on another thread than the loop's. False also when the link has no such way."""
        return False

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
