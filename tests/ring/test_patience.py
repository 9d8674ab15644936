from __future__ import annotations

import pytest

from longspan.ring.patience import LEARNT, SLACK, STUCK_SECONDS, Patience


def learnt(seconds: float, rows: int, silence: float = 2.0) -> Patience:
    patience = Patience(silence)
    for number in range(LEARNT):
        patience.sent(rows, number * 10.0)
        patience.returned(number * 10.0 + seconds)
    return patience


def test_nothing_is_due_while_nothing_is_under_way() -> None:
    patience = learnt(0.1, 1)
    assert not patience.overdue(1e9)


def test_before_anything_is_known_a_ring_is_waited_for_long() -> None:
    patience = Patience(2.0)
    patience.sent(1, 0.0)
    assert not patience.overdue(STUCK_SECONDS - 1)
    assert patience.overdue(STUCK_SECONDS + 1)


def test_a_ring_that_stands_still_is_noticed_soon() -> None:
    patience = learnt(0.1, 4)
    patience.sent(4, 100.0)
    assert not patience.overdue(100.0 + 2.0)
    assert patience.overdue(100.0 + 2.0 + SLACK * 0.1 + 0.01)
    patience.returned(103.0)
    patience.sent(4, 104.0)
    assert not patience.overdue(105.0)


def test_a_long_prompt_is_waited_for_in_proportion() -> None:
    patience = learnt(0.1, 1)
    patience.sent(100, 100.0)
    assert not patience.overdue(100.0 + 100 * 0.1)
    assert patience.limit() == pytest.approx(2.0 + SLACK * 10.0)


def test_no_wait_is_endless() -> None:
    patience = learnt(60.0, 1)
    patience.sent(500, 1000.0)
    assert patience.limit() == STUCK_SECONDS
