"""What the planner asks of speculation; `speculate.speculation` and `speculate.windows` fit. It is optional."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items
from typing import Any, Protocol

from longspan.schedule.geometry import Geometry
from longspan.schedule.span import DraftRequest, Sample, Span, StageTiming


class Tail(Protocol):
    """What lies beyond the committed tokens of one sequence: drafts, and the windows that are in flight."""

    @property
    def draft_behind_prompt(self) -> DraftRequest:
        """Whether the last stage's head shall draft from the row that ends the prompt."""
        ...

    @property
    def runs_ahead(self) -> bool:
        """Whether windows follow each other on guesses, so that one that is back tells nothing of the others."""
        ...

    def commit(self, span: Span, samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
        """Take over what the ring computed for a span of the running epoch; the samples that were committed."""
        ...

    def forget(self) -> None:
        """The sequence was rewound, or is over."""
        ...


class Speculator(Protocol):
    """Deals the rows of an iteration to the windows of sequences. Times are the planner's."""

    @property
    def in_step(self) -> bool:
        """Whether sequences that come back are worth their waiting for neighbours: see `lanes.lane`."""
        ...

    def windows(self, sequence: Any) -> Any:
        """The tail of a new sequence."""
        ...

    def refresh(self, sequences: int, group: int, history: float, now: float) -> None:
        """Before rows are dealt: so many sequences decode, `group` in one iteration, behind so much history."""
        ...

    def deal(self, ready: Items[Any], running: Iterable[Any], rows: int, group: int, now: float) -> list[Span]:
        """Spans of the next iteration, in no particular order.

        One row or more for each of `ready`, and windows on a guess for others of `running`.
        """
        ...

    def returned(self, spans: Iterable[Span], now: float) -> None:
        """An iteration is back, before its results are taken."""
        ...

    def measured(self, trip: float, timings: Items[StageTiming], geometry: Geometry) -> None:
        """An iteration without prefill rows came back `trip` seconds after it was planned."""
        ...

    def lost(self) -> None:
        """The ring is gone, and all that was in flight."""
        ...
