"""Which prompts get the prefill rows of an iteration."""

from __future__ import annotations

from longspan.schedule.admission import Admission
from longspan.schedule.borders import next_piece
from longspan.schedule.roster import Roster
from longspan.schedule.sequence import Sequence
from longspan.schedule.span import Span


class Filling:
    """Deals rows to running prompts and to waiting ones, whichever is due first.

    A waiting sequence takes a slot only when it gets rows at once: until then shorter ones can still pass it, and
    it holds no cells.
    """

    def __init__(self, roster: Roster, admission: Admission) -> None:
        self._roster = roster
        self._admission = admission

    @property
    def wanted(self) -> bool:
        """True when there may be prefill rows to run."""
        roster = self._roster
        return bool(roster.prefilling) or (len(roster.waiting) > 0 and roster.slots.has_room)

    @property
    def contended(self) -> bool:
        """True when more than one prompt could use the next iteration."""
        roster = self._roster
        waiting = len(roster.waiting) if roster.slots.has_room else 0
        return len(roster.prefilling) + waiting > 1

    @property
    def next_start(self) -> int:
        """History of the prompt that is likely to be next; for predictions only."""
        return next((sequence.dispatched for sequence in self._roster.prefilling.values()), 0)

    @property
    def whole_piece_wanted(self) -> bool:
        """True when a piece waits that must run alone."""
        roster = self._roster
        if any(next_piece(sequence, roster.limits).whole for sequence in roster.prefilling.values()):
            return True
        return roster.slots.has_room and any(
            next_piece(head, roster.limits).whole for head in roster.waiting.first(1)
        )

    def fill(self, rows: int, target: int, now: float) -> list[Span]:
        """Spans of an iteration without decode rows: about `target` rows, at most `rows`, or one whole piece.

        A short prompt is not cut because of the target.
        """
        limits, whole_rows = self._roster.limits, self._roster.policy.whole_rows
        spans: list[Span] = []
        tried: set[int] = set()
        left = rows
        while target > 0 and len(spans) < limits.max_prefill_sequences:
            sequence = self._next(tried, now)
            if sequence is None:
                break
            piece = next_piece(sequence, limits)
            if piece.whole:
                if spans:
                    continue
                return [self._dispatch(sequence, piece.rows)]
            taken = min(piece.rows, limits.chunk, target)
            if piece.rows <= min(whole_rows, left):
                taken = piece.rows
            spans.append(self._dispatch(sequence, taken))
            left -= taken
            target = min(target - taken, left)
        return spans

    def join(self, rows: int, now: float) -> list[Span]:
        """At most `rows` rows of spans that may run beside decode rows."""
        limits = self._roster.limits
        spans: list[Span] = []
        tried: set[int] = set()
        while rows > 0 and len(spans) < limits.max_prefill_sequences:
            sequence = self._next(tried, now)
            if sequence is None:
                break
            piece = next_piece(sequence, limits)
            if not piece.whole:
                taken = min(piece.rows, limits.chunk, rows)
                spans.append(self._dispatch(sequence, taken))
                rows -= taken
        return spans

    def whole_piece(self, now: float) -> list[Span]:
        """The piece due first that must run alone, if there is one."""
        tried: set[int] = set()
        while (sequence := self._next(tried, now)) is not None:
            piece = next_piece(sequence, self._roster.limits)
            if piece.whole:
                return [self._dispatch(sequence, piece.rows)]
        return []

    def _dispatch(self, sequence: Sequence, rows: int) -> Span:
        span = sequence.prefill_span(rows)
        if sequence.prefill_remaining <= 0:
            self._roster.prefilled(sequence)
        return span

    def _next(self, tried: set[int], now: float) -> Sequence | None:
        """The sequence due first that was not tried; a waiting one is admitted, even if it needs no rows."""
        roster = self._roster
        due = roster.waiting.due
        best = min(
            (sequence for sequence in roster.prefilling.values() if sequence.id not in tried),
            key=lambda sequence: (due(sequence), sequence.id),
            default=None,
        )
        while (candidate := self._admission.candidate()) is not None:
            sequence, placement = candidate
            if best is not None and due(best) <= due(sequence):
                break
            self._admission.admit(sequence, placement, now)
            if sequence.prefill_remaining > 0:
                best = sequence
                break
        if best is not None:
            tried.add(best.id)
        return best
