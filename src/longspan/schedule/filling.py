"""Which prompts get the prefill rows of an iteration."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from longspan.schedule.admission import Admission
from longspan.schedule.borders import Piece, next_piece
from longspan.schedule.roster import Roster
from longspan.schedule.sequence import Sequence
from longspan.schedule.slots import Placement
from longspan.schedule.span import Span


class Prompt(NamedTuple):
    """A prompt that could get rows next. placement: where a waiting one would run; None for a running one."""

    sequence: Sequence
    placement: Placement | None
    start: int
    piece: Piece

    @property
    def fresh(self) -> bool:
        """True when nothing of it was run yet."""
        return self.placement is not None


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

    def next_prompt(self) -> Prompt | None:
        """The prompt that is due first; nothing is changed."""
        return self._next(set())

    def fill(self, rows: int, target: int, first: Prompt, now: float) -> list[Span]:
        """Spans of an iteration without decode rows: about `target` rows, at most `rows`, or one whole piece.

        In all these methods `first` is what `next_prompt` gave. A short prompt is not cut because of the target.
        """
        limits, whole_rows = self._roster.limits, self._roster.policy.whole_rows

        def choose(prompt: Prompt, dealt: int) -> int:
            piece = prompt.piece
            if piece.whole:
                return 0 if dealt else piece.rows
            if prompt.fresh and piece.rows <= whole_rows and dealt + piece.rows <= rows and dealt < target:
                return piece.rows
            return min(piece.rows, limits.chunk, target - dealt)

        return self._deal(rows, first, now, choose)

    def join(self, rows: int, first: Prompt, now: float) -> list[Span]:
        """At most `rows` rows of spans that may run beside decode rows."""
        chunk = self._roster.limits.chunk

        def choose(prompt: Prompt, dealt: int) -> int:
            return 0 if prompt.piece.whole else min(prompt.piece.rows, chunk, rows - dealt)

        return self._deal(rows, first, now, choose)

    def complete(self, rows: int, first: Prompt, now: float) -> list[Span]:
        """Spans of prompts that were not begun and end in this iteration, at most `rows` rows together."""

        def choose(prompt: Prompt, dealt: int) -> int:
            fits = prompt.fresh and not prompt.piece.whole and prompt.piece.rows <= rows - dealt
            return prompt.piece.rows if fits else 0

        return self._deal(rows, first, now, choose)

    def whole_piece(self, first: Prompt, now: float) -> list[Span]:
        """The piece due first that must run alone, if there is one."""
        rows = self._roster.limits.rows

        def choose(prompt: Prompt, dealt: int) -> int:
            return prompt.piece.rows if prompt.piece.whole and not dealt else 0

        return self._deal(rows, first, now, choose)

    def _deal(self, rows: int, first: Prompt, now: float, choose: Callable[[Prompt, int], int]) -> list[Span]:
        """Deal up to `rows` rows, to `first` first.

        `choose` says how many rows a prompt gets, after so many were dealt; 0: pass by.
        """
        limits = self._roster.limits
        spans: list[Span] = []
        tried: set[int] = set()
        dealt = 0
        prompt: Prompt | None = first
        while prompt is not None and dealt < rows:
            tried.add(prompt.sequence.id)
            taken = choose(prompt, dealt)
            if taken > 0 or not prompt.piece.rows:
                if prompt.placement is not None:
                    self._admission.admit(prompt.sequence, prompt.placement, now)
                if taken > 0:
                    spans.append(prompt.sequence.prefill_span(taken))
                    dealt += taken
                    if prompt.sequence.prefill_remaining <= 0:
                        self._roster.prefilled(prompt.sequence)
            full = dealt >= rows or len(spans) >= limits.max_prefill_sequences
            prompt = None if full else self._next(tried)
        return spans

    def _next(self, tried: set[int]) -> Prompt | None:
        """The prompt due first that was not tried."""
        roster = self._roster
        waiting = roster.waiting
        due = waiting.due
        running: Sequence | None = None
        running_due = math.inf
        for sequence in roster.prefilling.values():
            if sequence.id not in tried and (at := due(sequence)) < running_due:
                running, running_due = sequence, at
        if waiting.first_due() < running_due or waiting.overdue() is not None:
            candidate = self._admission.candidate(tried)
            if candidate is not None and due(candidate[0]) < running_due:
                sequence, placement = candidate
                start = placement.length
                return Prompt(sequence, placement, start, next_piece(sequence, start, roster.limits))
        if running is None:
            return None
        start = running.dispatched
        return Prompt(running, None, start, next_piece(running, start, roster.limits))
