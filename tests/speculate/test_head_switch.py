from __future__ import annotations

import pytest

from longspan.speculate.acceptance import CommonBooks, SequenceBooks
from longspan.speculate.depth import Conditions
from longspan.speculate.head_switch import HEAD_BOOK, HeadSwitch

SECONDS = [0.003 + 0.0012 * rows for rows in range(65)]
HEAD_SECONDS = 0.002


def conditions(sequences: int, link: float = 0.02) -> Conditions:
    return Conditions(SECONDS, 2.0, link, 63, sequences, max(1, sequences // 2))


def switch(chance: float) -> HeadSwitch:
    """One whose head was right that often, and takes some time."""
    books = CommonBooks()
    own = SequenceBooks(books)
    for count in range(400):
        own.record(HEAD_BOOK, 1 + count % 4, count % 100 < 100 * chance)
    found = HeadSwitch(books)
    for _ in range(80):
        found.measured(HEAD_SECONDS)
    return found


def test_one_alone_gains_by_drafts_that_a_crowd_loses_by() -> None:
    head = switch(0.6)
    assert head.decide(conditions(1, 0.2), 0.0)
    assert not head.decide(conditions(16, 0.0), 0.1)


@pytest.mark.parametrize(("sequences", "trips"), [(1, 8), (2, 4), (8, 3), (32, 3)])
def test_trying_again_takes_little_of_the_time(sequences: int, trips: int) -> None:
    """The more answers there are, the sooner a probe tells."""
    head = switch(0.05)
    ring = conditions(sequences, 0.05)
    trip = max(ring.trip(1), ring.turn(1))
    step = trip / 10
    wanted = [head.decide(ring, count * step) for count in range(10000)]
    first = wanted.index(True)
    assert wanted[first : first + 10 * trips - 1] == [True] * (10 * trips - 1)
    assert not any(wanted[first + 10 * trips + 2 : first + 200])
    assert 0 < sum(wanted) < 0.03 * len(wanted)


def test_what_the_head_takes_counts_as_often_as_it_drafted() -> None:
    head = switch(0.6)
    bare = conditions(1)
    assert head.with_drafts(bare, 1.0).cost(1) == pytest.approx(bare.cost(1) + HEAD_SECONDS)
    for _ in range(7):
        head.measured(0.0)
    assert head.with_drafts(bare).cost(1) == pytest.approx(bare.cost(1) + HEAD_SECONDS * 0.9**7, rel=1e-3)
    # It drafts on one stage, so a trip grows by that, and not by as much for every stage.
    assert head.with_drafts(bare, 1.0).trip(1) == pytest.approx(bare.trip(1) + HEAD_SECONDS)


def test_in_a_crowd_what_came_counts_for_more_than_what_was_predicted() -> None:
    ring = conditions(8, 0.2)
    head = switch(0.7)
    assert head.decide(ring, 0.0), "by prediction it pays"
    predicted = 8 / ring.trip(1)
    now = 0.0
    wanted: list[bool] = []
    for _ in range(100):
        now += 0.25
        # Drafts bring a tenth less than there is without them.
        head.committed(round(0.25 * predicted * (0.9 if head_on(wanted) else 1.0)), alone=True)
        wanted.append(head.decide(ring, now))
    assert not wanted[-1] and sum(wanted) < 40


def head_on(wanted: list[bool]) -> bool:
    return wanted[-1] if wanted else True


def test_what_comes_with_prompts_or_after_a_pause_tells_nothing() -> None:
    ring = conditions(8, 0.2)
    for pause, alone in ((0.25, False), (30.0, True)):
        head = switch(0.7)
        head.decide(ring, 0.0)
        for count in range(1, 40):
            head.committed(0, alone=alone)
            assert head.decide(ring, count * pause)
