"""Where a stage's layers come from."""

from __future__ import annotations

import abc
from collections.abc import Callable

from longspan.ring.messages import Assignment
from longspan.ring.tcp import TcpLink
from longspan.runtime.base import StageRuntime


class StageLoader(abc.ABC):
    """Opens the layers of an assignment. `digest`, `layers`, `width` and `dtypes` are of the model."""

    digest: str
    layers: int
    width: int
    dtypes: tuple[str, ...]

    def holds(self, digest: str) -> bool:
        """Whether layers of the model with this digest can be loaded, or got."""
        return digest == self.digest

    async def prepare(self, link: TcpLink, digest: str, assignment: Assignment) -> None:
        """Before `load`: get from the coordinator at the other end of `link` what the assignment lacks here.

        Nothing does where the whole model is at hand. Raises LongspanError.
        """
        return

    @abc.abstractmethod
    def load(self, assignment: Assignment, report: Callable[[str], None]) -> StageRuntime:
        """The runtime for the assignment; called on the thread that will own it.

        report: takes a line about what is being done. Raises LongspanError.
        """

    @abc.abstractmethod
    def free_bytes(self) -> int:
        """Memory of this machine, or of its graphics cards, that is free for layers."""
