"""The order of the queue."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from longspan.schedule.policy import Policy
from longspan.schedule.request import SequenceRequest
from longspan.schedule.sequence import Sequence
from longspan.schedule.waiting import WaitingQueue


def sequence(
    identity: int, at: float, rows: int = 10, priority: int = 0, deadline: float | None = None
) -> Sequence:
    request = SequenceRequest(prompt=(1,) * rows, max_tokens=4, priority=priority, deadline=deadline)
    return Sequence(identity, request, at, 1 << 20)


def queue_of(policy: Policy, *sequences: Sequence) -> WaitingQueue:
    queue = WaitingQueue(policy)
    for entry in sequences:
        queue.add(entry)
    return queue


def identities(queue: WaitingQueue) -> list[int]:
    return [entry.id for entry in queue]


def test_equal_prompts_run_in_order_of_arrival() -> None:
    queue = queue_of(Policy(), sequence(0, 0.0), sequence(1, 0.1), sequence(2, 0.1))
    assert identities(queue) == [0, 1, 2]


def test_a_short_prompt_passes_a_long_one_for_a_bounded_time() -> None:
    policy = Policy(patience=0.002)
    queue = queue_of(policy, sequence(0, 0.0, rows=1001), sequence(1, 1.9, rows=1), sequence(2, 2.1, rows=1))
    assert identities(queue) == [1, 0, 2]


def test_priority_is_worth_a_time() -> None:
    policy = Policy(aging_seconds=10.0)
    queue = queue_of(policy, sequence(0, 0.0), sequence(1, 9.0, priority=-1), sequence(2, 11.0, priority=-1))
    assert identities(queue) == [1, 0, 2]


def test_a_deadline_takes_the_penalty_of_length_away_but_not_more() -> None:
    policy = Policy(patience=0.01)
    queue = queue_of(policy, sequence(0, 0.0, rows=500, deadline=5.2), sequence(1, 0.3), sequence(2, -0.1, rows=2))
    assert identities(queue) == [2, 0, 1]


def test_a_sequence_that_lost_its_slot_comes_before_new_ones() -> None:
    resumed = sequence(0, 5.0, rows=300)
    resumed.tokens.append(7)
    queue = queue_of(Policy(), sequence(1, 0.0), resumed)
    assert identities(queue) == [0, 1]


def test_overtakes_count_later_and_not_more_urgent_sequences() -> None:
    first, second = sequence(0, 0.0, rows=5000), sequence(1, 0.0, rows=5000)
    queue = queue_of(Policy(overtake_limit=3), first, second)
    for identity, priority in ((2, 0), (3, -1), (4, 1), (5, 0)):
        later = sequence(identity, 0.1, priority=priority)
        queue.add(later)
        queue.admit(later)
    assert queue.overtakes(first) == queue.overtakes(second) == 3
    assert queue.overdue() is first
    queue.admit(second)
    assert second.overtakes == 3
    assert queue.overtakes(first) == 4


def test_overtakes_do_not_outlive_those_who_were_overtaken() -> None:
    first = sequence(0, 0.0, rows=5000)
    queue = queue_of(Policy(overtake_limit=2), first)
    for identity in (1, 2):
        later = sequence(identity, 0.0)
        queue.add(later)
        queue.admit(later)
    fresh = sequence(3, 0.1)
    queue.add(fresh)
    assert queue.overdue() is first
    queue.admit(first)
    assert queue.overtakes(fresh) == 0
    assert queue.overdue() is None


def test_the_most_urgent_overdue_sequence_comes_first() -> None:
    low, high = sequence(0, 0.0, rows=9000, priority=1), sequence(1, 0.0, rows=9000)
    queue = queue_of(Policy(overtake_limit=1), low, high)
    later = sequence(2, 0.0, priority=1)
    queue.add(later)
    queue.admit(later)
    assert queue.overdue() is high


def test_time_limits_pass_over_those_who_left() -> None:
    queue = WaitingQueue(Policy(queue_timeout=2.0))
    first, second, third = sequence(0, 0.0), sequence(1, 1.0, deadline=1.5), sequence(2, 1.2)
    for entry in (first, second, third):
        queue.add(entry)
    assert queue.next_time_limit() == 1.5
    queue.admit(second)
    second.admitted_at = 1.3
    assert queue.next_time_limit() == 2.0
    assert queue.expired(1.9) == []
    assert queue.expired(2.0) == [first]
    assert queue.next_time_limit() == 3.2


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 3000), st.integers(-3, 3)), max_size=40), st.randoms())
def test_removing_in_any_order_leaves_the_rest_in_order(
    entries: list[tuple[float, int, int]], generator: random.Random
) -> None:
    sequences = [sequence(i, at, rows, priority) for i, (at, rows, priority) in enumerate(entries)]
    queue = queue_of(Policy(), *sequences)
    left = list(sequences)
    while left:
        expected = sorted(left, key=lambda entry: (queue.due(entry), entry.id))
        assert list(queue) == expected
        assert queue.first(3) == expected[:3]
        assert queue.oldest_arrival() is not None
        gone = generator.choice(left)
        queue.remove(gone)
        left.remove(gone)
    assert len(queue) == 0
    assert queue.oldest_arrival() is None


@given(st.lists(st.integers(1, 4000), min_size=30, max_size=60))
def test_nobody_is_overtaken_more_often_than_the_limit_allows(lengths: list[int]) -> None:
    """One admission at a time, a new arrival after each: the planner's rule on the queue alone."""
    policy = Policy(overtake_limit=3)
    queue = WaitingQueue(policy)
    waiting = 0
    for identity, rows in enumerate(lengths):
        queue.add(sequence(identity, 0.001 * identity, rows))
        waiting += 1
        if waiting > 6:
            chosen = queue.overdue() or queue.first(1)[0]
            queue.admit(chosen)
            # While several are overdue, each of them can be passed once more by each of the others.
            assert chosen.overtakes <= policy.overtake_limit + 6
            waiting -= 1
