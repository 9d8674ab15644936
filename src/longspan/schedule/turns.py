"""Whose turn it is: decode rows, prefill beside them, or prefill alone."""

from __future__ import annotations

from collections.abc import Collection

from longspan.schedule.filling import Filling, Prompt
from longspan.schedule.geometry import Geometry
from longspan.schedule.pacing import NOTHING_JOINED, Joining, Pacing
from longspan.schedule.plan_record import PlanRecord
from longspan.schedule.roster import Roster
from longspan.schedule.span import Span


class Turns:
    """Gives the prefill rows of each iteration, and remembers who had the last ones."""

    def __init__(self, roster: Roster, filling: Filling, pacing: Pacing, in_flight: Collection[PlanRecord]) -> None:
        """in_flight: the planner's, oldest first."""
        self._roster = roster
        self._filling = filling
        self._pacing = pacing
        self._in_flight = in_flight
        self._prefill_only_in_a_row = 0
        self._last_decode = Geometry()

    def before_decode(self, prompt: Prompt, now: float) -> list[Span]:
        """Spans of an iteration without decode rows although some are ready; empty when it is not their turn."""
        roster, pacing = self._roster, self._pacing
        if not len(roster.ready) or self._prefill_only_in_a_row >= roster.limits.max_prefill_only_in_a_row:
            return []
        if not pacing.mixes(now):
            return self.alone(prompt, now) if pacing.debt <= 0 else []
        if prompt.piece.whole:
            return self._filling.whole_piece(prompt, now) if pacing.debt <= 0 else []
        rows = min(roster.limits.free_rows, roster.policy.whole_rows)
        if prompt.fresh and 0 < prompt.piece.rows <= rows:
            waited = now - prompt.sequence.arrival
            if pacing.short_prompt_first(self._last_decode, prompt.start, prompt.piece.rows, waited):
                return self._filling.complete(rows, prompt, now)
        if pacing.prefill_is_behind(Geometry().joined(prompt.start, roster.limits.free_rows)):
            return self.alone(prompt, now)
        if pacing.debt <= 0 and not pacing.joining_pays(self._last_decode, prompt.start, now):
            return self.alone(prompt, now)
        return []

    def beside(self, decode: Geometry, prompt: Prompt, now: float) -> tuple[list[Span], Joining]:
        """Spans that join decode rows of this geometry, and what was allowed."""
        if self._prefill_only_in_a_row:
            return [], NOTHING_JOINED
        rows = self._roster.limits.free_rows - decode.rows
        if prompt.sequence.standing and self._pacing.mixes(now):
            joining = self._pacing.join_whole(decode, rows)
        else:
            joining = self._pacing.join(decode, prompt.start, rows, now)
        return self._filling.join(joining.rows, prompt, now), joining

    def alone(self, prompt: Prompt, now: float) -> list[Span]:
        """Spans of an iteration without decode rows; `prompt` is due first."""
        rows = self._roster.limits.free_rows
        if self._roster.decoding:
            target = self._pacing.turn_rows(self._last_decode, prompt.start, rows)
        else:
            target = self._pacing.prefill_rows(prompt.start, rows, self._filling.contended)
        return self._filling.fill(rows, target, prompt, now)

    def in_pause(self, prompt: Prompt, now: float) -> list[Span]:
        """Spans of an iteration while no decode row is ready; empty when it is better to wait for one."""
        waited_for = self._roster.decoding and not prompt.sequence.standing
        pause = self._pacing.returns.pause(self._in_flight, now) if waited_for else None
        if pause is None:
            return self.alone(prompt, now)
        rows = self._roster.limits.free_rows
        target = self._pacing.pause_rows(self._last_decode, prompt.start, rows, pause, now)
        if not target or (prompt.piece.whole and self._pacing.debt > 0 and target < rows):
            return []
        return self._filling.fill(rows, target, prompt, now)

    def sent(self, decode: Geometry, streams: int) -> None:
        """An iteration goes out with these decode rows, if any; so many sequences were past their prefill."""
        if decode.exact_rows:
            self._last_decode = decode
        starving = streams and not decode.exact_rows
        self._prefill_only_in_a_row = self._prefill_only_in_a_row + 1 if starving else 0

    def ring_lost(self) -> None:
        """Nothing is in flight any more."""
        self._prefill_only_in_a_row = 0
