from __future__ import annotations

from longspan.speculate.credits import Credits
from longspan.speculate.depth import Conditions

CONDITIONS = Conditions([0.003 + 0.0012 * rows for rows in range(65)], 2.0, 0.1, 63)


def filled(width: int, conditions: Conditions = CONDITIONS) -> int:
    """How many iterations of this width are allowed in flight."""
    credits_ = Credits()
    credits_.conditions = conditions
    count = 0
    while credits_.allow(width):
        credits_.take(width)
        count += 1
        assert count < 1000
    return count


def test_the_ring_is_filled_for_a_trip_and_no_more() -> None:
    for width in (1, 4, 16, 48):
        iterations = CONDITIONS.trip(width) / CONDITIONS.cost(width)
        assert iterations - 0.25 <= filled(width) <= iterations + 1


def test_one_stage_beside_the_coordinator_takes_one_iteration() -> None:
    assert filled(8, CONDITIONS._replace(spread=1.0, link=0.0)) == 1


def test_what_comes_back_makes_room() -> None:
    credits_ = Credits()
    credits_.conditions = CONDITIONS._replace(link=0.0)
    credits_.take(8)
    credits_.take(8)
    assert not credits_.allow(8)
    credits_.give_back()
    assert credits_.allow(8)
    credits_.take(8)
    credits_.clear()
    assert credits_.seconds == 0.0 and credits_.allow(8)
    credits_.give_back()  # of an iteration that was lost: no harm
    assert credits_.seconds == 0.0


def test_without_conditions_there_is_no_limit() -> None:
    credits_ = Credits()
    for _ in range(100):
        assert credits_.allow(16) and credits_.worth([0.0], 1e9)
        credits_.take(16)


def test_a_window_is_worth_less_the_busier_the_stage_is() -> None:
    alone = Credits()
    alone.conditions = CONDITIONS
    crowded = Credits()
    crowded.conditions = CONDITIONS._replace(link=0.0, sequences=64, group=32)
    rate = 300.0
    likely, unlikely = [0.5] * 4, [0.02] * 4
    assert alone.worth(likely, rate)
    assert not alone.worth(unlikely, rate)
    assert not crowded.worth(likely, rate)
    assert crowded.worth([0.999] * 8, rate)


def test_running_ahead_beside_others_has_to_bring_what_leaving_them_costs() -> None:
    credits_ = Credits()
    for sequences, enough in ((1, True), (2, False)):
        credits_.conditions = CONDITIONS._replace(link=1.0, sequences=sequences)
        assert credits_.worth([0.4], 10.0) is enough
    assert credits_.worth([0.9, 0.8], 10.0)
