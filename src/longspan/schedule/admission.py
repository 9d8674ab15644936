"""Which waiting sequence is let in next, and who must go when cells run out."""

from __future__ import annotations

from collections.abc import Container

from longspan.errors import ContextLengthError, QueueFullError, RequestError
from longspan.schedule.limits import Limits
from longspan.schedule.request import PRIORITY_RANGE, SequenceRequest
from longspan.schedule.roster import Roster
from longspan.schedule.sequence import Sequence
from longspan.schedule.slots import Placement

HEADROOM = 8
"""Cells of the shared pool that admission leaves free for each running sequence to grow into."""

LARGEST_SHARE = 7 / 8
"""A prompt that needs more of the pool than this waits until it is overdue, or nobody else runs."""

_RETRY_SECONDS = (1.0, 60.0)
_SMOOTHING = 0.2


class Admission:
    """Lets sequences into the queue and from the queue into slots."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._interval: float | None = None
        self._last_admission: float | None = None

    def check(self, request: SequenceRequest, limits: Limits) -> None:
        """Refuse what can never run, or cannot be queued now.

        Raises RequestError (empty prompt, max_tokens or priority out of range), ContextLengthError when not even
        one token can follow the prompt, QueueFullError with an estimate of when a place is free.
        """
        if not request.prompt:
            raise RequestError("the prompt has no tokens; it needs at least one", param="prompt")
        if request.max_tokens < 1:
            raise RequestError(f"max_tokens is {request.max_tokens}; it must be at least 1", param="max_tokens")
        if abs(request.priority) > PRIORITY_RANGE:
            raise RequestError(
                f"priority is {request.priority}; it must be within -{PRIORITY_RANGE} and {PRIORITY_RANGE}",
                param="priority",
            )
        if len(request.prompt) + 1 > limits.longest:
            raise ContextLengthError(
                f"the prompt has {len(request.prompt)} tokens, but prompt and answer together may have at most "
                f"{limits.longest}; make the prompt shorter or serve with a larger context"
            )
        if len(self._roster.waiting) >= limits.max_waiting:
            seconds = self._retry_after()
            raise QueueFullError(
                f"{len(self._roster.waiting)} requests are waiting already, the queue is full; "
                f"try again in {seconds:.0f} s",
                retry_after=seconds,
            )

    def candidate(self, passed: Container[int] = ()) -> tuple[Sequence, Placement] | None:
        """The sequence to admit next, other than those `passed` by id, and its place; None when nobody fits.

        An overdue sequence comes first, and while it does not fit nobody else is let in. Otherwise the first few in
        due order are considered: the one with the longest cached prefix, else the first that fits.
        """
        roster = self._roster
        waiting, slots = roster.waiting, roster.slots
        if not len(waiting) or not slots.has_room:
            return None
        headroom = HEADROOM * slots.running if roster.limits.pooled else 0
        overdue = waiting.overdue()
        if overdue is not None and overdue.id not in passed:
            return self._placed(overdue, headroom)
        window = [entry for entry in waiting.first(roster.policy.cache_window) if entry.id not in passed]
        for sequence in slots.by_cached_length(window):
            if self._takes_too_much(sequence):
                continue
            if (found := self._placed(sequence, headroom)) is not None:
                return found
        return None

    def admit(self, sequence: Sequence, placement: Placement, now: float) -> None:
        """Let the sequence in, and learn how fast the queue moves."""
        self._roster.admit(sequence, placement, now)
        if self._last_admission is not None:
            seconds = now - self._last_admission
            old = seconds if self._interval is None else self._interval
            self._interval = old + _SMOOTHING * (seconds - old)
        self._last_admission = now

    def make_room(self, slots: list[int]) -> list[int]:
        """Claim a cell for a decode row of each slot; returns the slots that still run.

        When the pool is empty, the least urgent sequence is preempted, the newest first. A sequence that is alone
        always finds a cell: its answer ends when prompt and answer fill the pool.
        """
        roster = self._roster
        kept = []
        for slot in slots:
            while (sequence := roster.slots.owners[slot]) is not None:
                if roster.slots.claim_row(sequence):
                    kept.append(slot)
                    break
                running = [owner for owner in roster.slots.owners if owner is not None]
                roster.preempt(max(running, key=lambda other: (other.priority, other.arrival, other.id)))
        return [slot for slot in kept if roster.slots.owners[slot] is not None]

    def _placed(self, sequence: Sequence, headroom: int) -> tuple[Sequence, Placement] | None:
        placement = self._roster.slots.place(sequence, headroom)
        return None if placement is None else (sequence, placement)

    def _takes_too_much(self, sequence: Sequence) -> bool:
        roster = self._roster
        if not roster.limits.pooled or roster.slots.running == 0:
            return False
        return sequence.prefill_end + 1 > LARGEST_SHARE * roster.limits.cells

    def _retry_after(self) -> float:
        low, high = _RETRY_SECONDS
        return low if self._interval is None else min(high, max(low, self._interval))
