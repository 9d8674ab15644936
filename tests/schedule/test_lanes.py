from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.schedule.lanes import lane, lane_size
from longspan.schedule.policy import Policy
from longspan.schedule.span import IterationResult, Phase
from tests.schedule.driving import Driver, limits_with
from tests.schedule.test_planner import PROMPT


def test_who_came_back_with_another_lane_waits_for_the_rest_of_its_own() -> None:
    # 0, 1, 3 and 6 left together, and so did 2, 4, 5 and 7.
    assert lane([0, 1, 3, 6], [2, 4, 5, 7], 4, 0) == [0, 1, 3]
    assert lane([2, 4, 5, 6, 7], [0, 1, 3], 4, 0) == [4, 5, 6, 7]
    assert lane([2], [0, 1, 3, 4, 5, 6, 7], 4, 0) == []
    assert lane([0, 1, 2, 3], [4, 5, 6, 7], 4, 0) == [0, 1, 2, 3]


def test_halves_wait_for_each_other_and_not_past_each_other() -> None:
    assert lane([0, 1, 4, 5], [2, 3, 6, 7], 4, 0) == []
    assert lane(list(range(8)), [], 4, 0) == [0, 1, 2, 3]


def test_who_runs_ahead_keeps_its_place_and_is_waited_for_by_nobody() -> None:
    assert lane([1, 2, 3], [4, 5, 6, 7], 4, 0, ahead=[0]) == [1, 2, 3]
    assert lane([1], [2, 4, 5, 6, 7], 4, 0, ahead=[0, 3]) == []
    assert lane([1, 2], [3, 4, 5, 6, 7], 4, 0, ahead=[0]) == [1, 2]


def test_lanes_are_filled_in_fours() -> None:
    assert [lane_size(sequences, 2) for sequences in range(1, 13)] == [1, 1, 2, 2, 4, 4, 4, 4, 8, 8, 8, 8]
    assert [lane_size(sequences, 1) for sequences in (1, 3, 6)] == [1, 3, 6]


def test_lanes_take_turns() -> None:
    assert lane(list(range(6)), [], 2, 2) == [2, 3]
    assert lane(list(range(6)), [], 2, 5) == [0, 1]


@given(st.sets(st.integers(0, 40)), st.data(), st.integers(1, 12), st.integers(0, 41))
def test_a_lane_is_of_those_that_are_ready(slots: set[int], data: st.DataObject, size: int, cursor: int) -> None:
    order = sorted(slots)
    ready = [slot for slot in order if data.draw(st.booleans())]
    coming = [slot for slot in order if slot not in ready]
    found = lane(ready, coming, size, cursor)
    assert found == sorted(found) and set(found) <= set(ready) and len(found) <= size
    assert found or coming or not ready, "somebody waits for nobody"


@pytest.mark.parametrize("sequences", [4, 6, 7, 8, 12])
def test_sequences_that_left_in_any_company_soon_go_with_their_neighbours(sequences: int) -> None:
    driver = Driver(limits_with(slots=sequences), Policy(lanes=2))
    for number in range(sequences):
        driver.submit(PROMPT[: 9 + number % 3], 40)
        if number % 3 == 2:
            driver.step()
    flying: list[IterationResult] = []
    planned: list[list[int]] = []
    while any(len(answer) < 30 for answer in driver.answers.values()):
        while len(flying) < 3 and (entry := driver.plan()) is not None:
            flying.append(entry[1])
            if all(span.phase is Phase.DECODE for span in entry[0].spans):
                planned.append([span.slot for span in entry[0].spans])
        driver.complete(flying.pop(0))
    half = lane_size(sequences, 2)
    assert {tuple(slots) for slots in planned[-6:]} == {
        tuple(range(half)),
        tuple(range(half, sequences)),
    }
