"""Speculation with token trees: one sequence at a time, one span of it in flight."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from longspan.schedule.geometry import Geometry
from longspan.schedule.sequence import Sequence as Stream
from longspan.schedule.span import Span, StageTiming
from longspan.speculate.acceptance import CommonBooks, SequenceBooks
from longspan.speculate.grafts import Grafts
from longspan.speculate.ledger import Ledger, SpeculationStatistics
from longspan.speculate.pace import AutoPace
from longspan.speculate.tree import best_size
from longspan.speculate.tree_windows import TreeWindows

PRESUMED_SIZE = 12
"""Nodes of the first tree, before anything is known about the ring."""


class TreeSpeculation:
    """One for each ring, in the place of `Speculation`. The planner calls it; times are its `now`.

    nodes: drafts of every tree; None: as many as raise the tokens a second, from what the ring's iterations take
    and from what the head says of each path.
    """

    def __init__(self, *, rows: int, vocabulary: int, nodes: int | None = None) -> None:
        """rows: most rows of an iteration with a decode row. vocabulary: its size."""
        self._vocabulary = vocabulary
        self.ledger = Ledger()
        self._nodes = nodes
        self._books = CommonBooks()
        self._pace = AutoPace(self._books, rows)

    @property
    def in_step(self) -> bool:
        """There is one sequence only."""
        return False

    def windows(self, sequence: Stream) -> TreeWindows:
        """The windows of a new sequence."""
        return TreeWindows(sequence, self.ledger, self._vocabulary, Grafts(SequenceBooks(self._books)))

    def refresh(self, sequences: int, group: int, history: float, now: float) -> None:
        """Before rows are dealt: so many sequences decode, `group` in one iteration, behind so much history."""
        self._pace.refresh(sequences, group, history, now)

    def deal(
        self, ready: Sequence[TreeWindows], running: Iterable[TreeWindows], rows: int, group: int, now: float
    ) -> list[Span]:
        """A span for each of `ready`; the others have one in flight, and there is nothing to be sent behind it."""
        self.ledger.advance(now)
        left = rows - sum([windows.again for windows in ready])
        spans = []
        for windows in ready:
            span = windows.next_span(min(self._size(windows), max(0, left)))
            if span is not None:
                left -= len(span.tokens) - windows.again
                spans.append(span)
        return spans

    def returned(self, spans: Iterable[Span], now: float) -> None:
        """An iteration is back, before its results are taken: its decode and verify spans, void ones too."""
        self.ledger.advance(now)
        exact = [span for span in spans if span.phase.is_exact]
        for span in exact:
            self.ledger.returned(span)

    def measured(self, trip: float, timings: Sequence[StageTiming], geometry: Geometry) -> None:
        """An iteration without prefill rows came back `trip` seconds after it was planned."""
        self._pace.measured(trip, timings, geometry.exact_rows, geometry.sub_batches)

    def lost(self) -> None:
        """The ring is gone, and all that was in flight."""
        self.ledger.lost()

    def statistics(self, now: float) -> SpeculationStatistics:
        """Figures until now."""
        conditions = self._pace.conditions
        return msgspec.structs.replace(
            self.ledger.statistics(now),
            trip_seconds=conditions.trip(1) if conditions is not None else 0.0,
            stage_seconds=conditions.iteration(1) if conditions is not None else 0.0,
            head_wanted=True,
        )

    def _size(self, windows: TreeWindows) -> int:
        if self._nodes is not None:
            return self._nodes
        conditions = self._pace.conditions
        if conditions is None:
            return PRESUMED_SIZE
        return best_size(windows.tree.chances, windows.again, conditions)
