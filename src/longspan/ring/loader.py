"""Where a stage's layers come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from longspan.ring.messages import Assignment
from longspan.runtime.base import StageRuntime


class StageLoader(Protocol):
    """Opens the layers of an assignment. `digest`, `layers` and `width` are of the model."""

    digest: str
    layers: int
    width: int
    dtypes: tuple[str, ...]

    def load(self, assignment: Assignment, report: Callable[[str], None]) -> StageRuntime:
        """The runtime for the assignment; called on the thread that will own it.

        report: takes a line about what is being done. Raises LongspanError.
        """
