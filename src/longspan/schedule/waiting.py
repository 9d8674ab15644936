"""The queue of sequences without a slot.

Order is one number, the due time, that never changes while a sequence waits, so nothing is ever sorted again:

    due = arrival + priority x aging_seconds + patience x (rows beyond the first)

A level of priority is worth `aging_seconds` of waiting, and a long prompt concedes a bounded time to shorter ones:
aging is linear and nobody starves. On top of it, whoever was overtaken too often goes first.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections import OrderedDict
from collections.abc import Iterator

from longspan.schedule.policy import Policy
from longspan.schedule.sequence import Sequence, Status


class _PriorityClass:
    """Waiting sequences of one priority in order of arrival, and who overtook them."""

    def __init__(self) -> None:
        self.members: OrderedDict[int, Sequence] = OrderedDict()
        self.overtakers: list[int] = []

    def overtakes(self, identity: int) -> int:
        return len(self.overtakers) - bisect.bisect_right(self.overtakers, identity)

    def forget_old_overtakers(self) -> None:
        oldest = next(iter(self.members), None)
        if oldest is None:
            self.overtakers.clear()
        else:
            del self.overtakers[: bisect.bisect_right(self.overtakers, oldest)]


class WaitingQueue:
    """Sequences in due order. Adding, removing and looking at the first few cost at most O(log n) comparisons."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._ordered: list[tuple[float, int, Sequence]] = []
        self._classes: dict[int, _PriorityClass] = {}
        self._deadlines: list[tuple[float, int, Sequence]] = []

    def __len__(self) -> int:
        return len(self._ordered)

    def due(self, sequence: Sequence) -> float:
        """The time by which sequences are compared, also of running ones with prefill rows left.

        A deadline cancels the penalty of length in time. A replay, whose stream is open, gains a level of priority.
        """
        policy = self._policy
        base = sequence.arrival + sequence.priority * policy.aging_seconds
        rows = sequence.prefill_remaining
        if sequence.generated:
            return base - policy.aging_seconds
        due = base + policy.patience * (rows - 1)
        if sequence.request.deadline is not None:
            due = max(base, min(due, sequence.request.deadline - policy.patience * rows))
        return due

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence, or one that lost its slot."""
        bisect.insort(self._ordered, (self.due(sequence), sequence.id, sequence))
        members = self._classes.setdefault(sequence.priority, _PriorityClass()).members
        members[sequence.id] = sequence
        if sequence.resumed:
            members.move_to_end(sequence.id, last=False)
        elif (limit := self._time_limit(sequence)) is not None:
            heapq.heappush(self._deadlines, (limit, sequence.id, sequence))

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out: it was admitted, cancelled or timed out."""
        index = bisect.bisect_left(self._ordered, (self.due(sequence), sequence.id))
        del self._ordered[index]
        group = self._classes[sequence.priority]
        first = next(iter(group.members)) == sequence.id
        del group.members[sequence.id]
        if not group.members:
            del self._classes[sequence.priority]
        elif first:
            group.forget_old_overtakers()

    def admit(self, sequence: Sequence) -> None:
        """Remove an admitted sequence and count it against the earlier ones that it overtook."""
        sequence.overtakes = self.overtakes(sequence)
        self.remove(sequence)
        for priority, group in self._classes.items():
            if priority <= sequence.priority and next(iter(group.members)) < sequence.id:
                bisect.insort(group.overtakers, sequence.id)

    def overtakes(self, sequence: Sequence) -> int:
        """Later, not more urgent sequences that were admitted while this one waited."""
        return self._classes[sequence.priority].overtakes(sequence.id)

    def overdue(self) -> Sequence | None:
        """The most urgent sequence that was overtaken `overtake_limit` times, if any."""
        found: Sequence | None = None
        for group in self._classes.values():
            if len(group.overtakers) < self._policy.overtake_limit:
                continue
            identity, sequence = next(iter(group.members.items()))
            if group.overtakes(identity) < self._policy.overtake_limit:
                continue
            if found is None or (sequence.priority, sequence.id) < (found.priority, found.id):
                found = sequence
        return found

    def first_due(self) -> float:
        """The earliest due time; infinite when nobody waits."""
        return self._ordered[0][0] if self._ordered else math.inf

    def first(self, count: int) -> list[Sequence]:
        """The first `count` sequences in due order."""
        return [entry[2] for entry in self._ordered[:count]]

    def oldest_arrival(self) -> float | None:
        """Arrival of the sequence that waits longest."""
        arrivals = [next(iter(group.members.values())).arrival for group in self._classes.values()]
        return min(arrivals, default=None)

    def next_time_limit(self) -> float | None:
        """When the next sequence times out."""
        while self._deadlines and self._deadlines[0][2].admitted_at is not None:
            heapq.heappop(self._deadlines)
        while self._deadlines and self._deadlines[0][2].status is not Status.WAITING:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def expired(self, now: float) -> list[Sequence]:
        """Sequences that wait although their time is over; they stay queued until removed."""
        found = []
        while (limit := self.next_time_limit()) is not None and limit <= now:
            found.append(heapq.heappop(self._deadlines)[2])
        return found

    def __iter__(self) -> Iterator[Sequence]:
        return (entry[2] for entry in self._ordered)

    def _time_limit(self, sequence: Sequence) -> float | None:
        limits = []
        if self._policy.queue_timeout is not None:
            limits.append(sequence.arrival + self._policy.queue_timeout)
        if sequence.request.deadline is not None:
            limits.append(sequence.request.deadline)
        return min(limits, default=None)
