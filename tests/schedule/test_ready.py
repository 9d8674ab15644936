"""The rotating cursor over ready decode rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longspan.schedule.ready import ReadySlots


def ready(*slots: int) -> ReadySlots:
    made = ReadySlots()
    made.add(list(slots))
    return made


def test_taking_all_gives_slot_order() -> None:
    slots = ready(4, 1)
    slots.add([3])
    slots.add([2, 0])
    assert slots.take(9) == [0, 1, 2, 3, 4]
    assert len(slots) == 0


def test_the_cursor_goes_round() -> None:
    slots = ready(0, 1, 2, 3, 4)
    taken = []
    for _ in range(5):
        some = slots.take(2)
        taken.append(some)
        slots.add(some)
    assert taken == [[0, 1], [2, 3], [0, 4], [1, 2], [3, 4]]


def test_nothing_is_taken_of_nothing() -> None:
    assert ready().take(3) == []
    assert ready(1).take(0) == []


def test_discarding() -> None:
    slots = ready(1, 5)
    slots.discard(5)
    slots.discard(7)
    assert 5 not in slots
    assert 1 in slots
    assert slots.take(3) == [1]


@given(st.sets(st.integers(0, 30), min_size=1), st.integers(1, 8))
def test_everyone_has_a_turn_before_anyone_has_two(slots: set[int], count: int) -> None:
    made = ready(*slots)
    turns = dict.fromkeys(slots, 0)
    for _ in range(3 * len(slots)):
        taken = made.take(count)
        assert taken == sorted(set(taken))
        for slot in taken:
            turns[slot] += 1
        made.add(taken)
        assert max(turns.values()) - min(turns.values()) <= 1
