"""Slots and a pool of cells that are too small for everybody."""

from __future__ import annotations

import random

import pytest

from longspan.lab.oracle import serial_answer
from longspan.schedule.limits import Limits
from longspan.schedule.policy import Policy
from longspan.schedule.span import Drop
from tests.schedule.driving import Driver, limits_with


def prompt(seed: int, count: int) -> tuple[int, ...]:
    generator = random.Random(seed)
    return tuple(generator.randrange(32000) for _ in range(count))


def test_the_newest_of_the_least_urgent_gives_way_and_loses_no_token() -> None:
    driver = Driver(limits_with(slots=4, cells=200, pool=200))
    urgent = driver.submit(prompt(0, 40), 60, priority=-1)
    old, new = driver.submit(prompt(1, 30), 60), driver.submit(prompt(2, 30), 60)
    driver.run()
    assert driver.preempted
    assert driver.preempted[0] == new
    assert urgent not in driver.preempted
    for sequence, count, seed in ((urgent, 40, 0), (old, 30, 1), (new, 30, 2)):
        assert driver.answers[sequence] == serial_answer(prompt(seed, count), 60)
    statistics = driver.planner.statistics(driver.now)
    assert statistics.preemptions == len(driver.preempted)
    assert statistics.recompute_rows > 0


def test_cached_prefixes_go_before_anyone_is_preempted() -> None:
    driver = Driver(limits_with(slots=4, cells=200, pool=200))
    driver.submit(prompt(0, 100), 4)
    driver.run()
    assert driver.planner.statistics(driver.now).kv_cells_used == 103
    sequence = driver.submit(prompt(1, 60), 100)
    driver.run()
    assert driver.answers[sequence] == serial_answer(prompt(1, 60), 100)
    assert driver.preempted == []
    assert any(Drop(0) in iteration.operations for iteration in driver.iterations)


def test_who_is_alone_and_out_of_cells_has_filled_the_context() -> None:
    driver = Driver(limits_with(slots=2, cells=200, pool=80))
    sequence = driver.submit(prompt(0, 40), 100)
    driver.run()
    assert driver.ends == {sequence: "length"}
    assert driver.answers[sequence] == serial_answer(prompt(0, 40), 40)


def test_a_prompt_takes_a_slot_only_when_its_cells_are_there() -> None:
    driver = Driver(limits_with(slots=4, cells=200, pool=200))
    first = driver.submit(prompt(0, 150), 20)
    driver.step()
    second = driver.submit(prompt(1, 60), 4)
    driver.step()
    assert second not in driver.cached
    assert driver.planner.statistics(driver.now).waiting == 1
    driver.run()
    assert driver.answers[first] == serial_answer(prompt(0, 150), 20)
    assert driver.answers[second] == serial_answer(prompt(1, 60), 4)


def test_small_prompts_pass_one_that_does_not_fit_but_not_for_ever() -> None:
    driver = Driver(limits_with(slots=3, cells=200, pool=200), Policy(overtake_limit=3, patience=0.0))
    driver.submit(prompt(0, 20), 100)
    driver.step()
    large = driver.submit(prompt(1, 185), 2)
    small = [driver.submit(prompt(2 + i, 10), 2) for i in range(8)]
    order: list[int] = []
    while driver.step() is not None:
        order += [sequence for sequence in driver.cached if sequence not in order]
    assert order.index(large) == 4, "three pass it, then everybody waits until it fits"
    assert all(driver.answers[entry] for entry in [large, *small])


def test_long_prompts_do_not_fill_every_slot_before_a_short_one_runs() -> None:
    driver = Driver(limits_with(slots=4, cells=4000))
    long_prompts = [driver.submit(prompt(i, 3000), 4) for i in range(8)]
    driver.step()
    assert driver.planner.statistics(driver.now).running == 1
    short = driver.submit(prompt(99, 20), 4)
    driver.run_until(lambda: len(driver.answers[short]) > 0)
    assert not any(driver.answers[entry] for entry in long_prompts)


def test_a_long_prompt_is_not_starved_by_a_stream_of_short_ones() -> None:
    policy = Policy(patience=0.002)
    driver = Driver(Limits(slots=2, cells_per_slot=4000, exact_rows=64, max_rows=512, chunk=63), policy)
    long_prompt = driver.submit(prompt(0, 1500), 2)
    submitted = 0
    while not driver.answers[long_prompt]:
        while driver.planner.statistics(driver.now).waiting < 3:
            submitted += 1
            driver.submit(prompt(1 + submitted, 50), 2)
        driver.step()
        assert driver.now < 60, "the long prompt never runs"
    alone = 1500 * 0.001
    assert driver.now < policy.patience * 1500 + 4 * alone


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_the_lowest_empty_slot_is_given_out(slots: int) -> None:
    driver = Driver(limits_with(slots=slots), Policy(prefix_reuse=False))
    for i in range(slots):
        driver.submit(prompt(i, 10), 30 if i else 4)
    driver.run_until(lambda: 0 in driver.ends)
    driver.submit(prompt(9, 10), 4)
    driver.run_until(lambda: slots in driver.cached)
    owners = driver.planner._roster.slots.owners
    assert owners[0] is not None
    assert owners[0].id == slots


def test_without_empty_slots_one_beside_running_ones_is_chosen() -> None:
    """Of the slots unused for longest, slot 3 joins the running slots 2 and 4 to one run."""
    driver = Driver(limits_with(slots=6))
    for i in range(6):
        driver.submit(prompt(i, 20), 200 if i in (2, 4) else 4)
    driver.run_until(lambda: len(driver.ends) == 4)
    late = driver.submit(prompt(9, 20), 40)
    driver.run_until(lambda: late in driver.cached)
    owners = driver.planner._roster.slots.owners
    assert [slot for slot, owner in enumerate(owners) if owner is not None] in ([1, 2, 4], [2, 3, 4])


@pytest.mark.parametrize("pool", [118, 119, 120])
def test_a_plan_is_not_empty_because_those_whose_turn_it_was_gave_way(pool: int) -> None:
    """With lanes, one sequence is taken at a time; when just that one is preempted, the next one runs."""
    driver = Driver(limits_with(slots=3, cells=200, pool=pool), Policy(lanes=3, prefix_reuse=False))
    sequences = [driver.submit(prompt(i, 20), 60, priority=i) for i in range(3)]
    while len(driver.ends) < 3:
        assert driver.step() is not None, "nothing is in flight and work waits"
    assert driver.preempted
    for i, sequence in enumerate(sequences):
        assert driver.answers[sequence] == serial_answer(prompt(i, 20), 60)


def test_a_plan_is_not_empty_because_the_only_sequence_filled_the_context() -> None:
    driver = Driver(limits_with(slots=2, cells=200, pool=80))
    full = driver.submit(prompt(0, 40), 100)
    waiting = driver.submit(prompt(1, 60), 4)
    while len(driver.ends) < 2:
        assert driver.step() is not None, "nothing is in flight and work waits"
    assert len(driver.answers[full]) == 40
    assert driver.answers[waiting] == serial_answer(prompt(1, 60), 4)


def test_a_place_that_a_decode_row_has_just_taken_is_not_given_to_a_prompt() -> None:
    driver = Driver(limits_with(slots=4, cells=200, pool=200), Policy(joined_floor=1.0, whole_rows=0))
    driver.submit(prompt(0, 100), 4)
    driver.run()
    stream = driver.submit(prompt(1, 40), 150)
    slots = driver.planner._roster.slots
    driver.run_until(lambda: slots.cells_used == 200)
    late = driver.submit(prompt(2, 60), 4)  # fits when the cached prompt goes, which the stream needs too
    driver.run()
    assert driver.answers[stream] == serial_answer(prompt(1, 40), 150)
    assert driver.answers[late] == serial_answer(prompt(2, 60), 4)
