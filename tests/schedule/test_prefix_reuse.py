"""A sequence that starts from another one's KV gives the tokens that it gives cold."""

from __future__ import annotations

import random

import pytest

from longspan.schedule.policy import Policy
from longspan.schedule.prefix import BLOCK
from longspan.schedule.span import CopyPrefix
from tests.schedule.border_oracle import border_answer
from tests.schedule.driving import Driver, limits_with

NO_ENDS: frozenset[int] = frozenset()


def tokens(seed: int, count: int) -> tuple[int, ...]:
    generator = random.Random(seed)
    return tuple(generator.randrange(32000) for _ in range(count))


FREE = limits_with(exact_rows=64, chunk=63)
FIXED = limits_with(exact_rows=12, chunk=16)


@pytest.mark.parametrize("shared", range(1, 81))
@pytest.mark.parametrize("running", [False, True], ids=["finished", "running"])
def test_every_boundary_position(shared: int, running: bool) -> None:
    driver = Driver(FREE)
    first = tokens(1, 81)
    source = driver.submit(first, 40 if running else 4)
    driver.run_until(lambda: len(driver.answers[source]) >= 3 if running else source in driver.ends)
    prompt = first[:shared] + tokens(2, 30)
    sequence = driver.submit(prompt, 10)
    driver.run()
    assert driver.answers[sequence] == border_answer(prompt, 10, FREE, NO_ENDS)
    assert driver.answers[source] == border_answer(first, 40 if running else 4, FREE, NO_ENDS)
    assert driver.cached[sequence] == (shared if shared >= BLOCK else 0)


@pytest.mark.parametrize("shared", range(1, 81, 3))
@pytest.mark.parametrize("tail", [0, 1, 13, 16, 30])
def test_fixed_borders_reuse_only_whole_chunks_of_the_prompt(shared: int, tail: int) -> None:
    driver = Driver(FIXED)
    source = driver.submit(tokens(1, 81), 4)
    driver.run()
    assert source in driver.ends
    prompt = tokens(1, 81)[:shared] + tokens(2, tail)
    sequence = driver.submit(prompt, 10)
    driver.run()
    assert driver.answers[sequence] == border_answer(prompt, 10, FIXED, NO_ENDS)
    assert driver.cached[sequence] == min(shared, 80, len(prompt) - 1) // 16 * 16


@pytest.mark.parametrize("limits", [FREE, FIXED], ids=["free", "fixed"])
def test_a_conversation_goes_on_from_its_answer(limits: object) -> None:
    driver = Driver(FREE if limits is FREE else FIXED)
    prompt = tokens(3, 20)
    first = driver.submit(prompt, 60)
    driver.run()
    longer = prompt + tuple(driver.answers[first]) + tokens(4, 9)
    second = driver.submit(longer, 12)
    driver.run()
    assert driver.answers[second] == border_answer(longer, 12, driver.limits, NO_ENDS)
    # 79 positions were computed; behind fixed borders only the first whole chunk of the first prompt counts.
    assert driver.cached[second] == (79 if limits is FREE else 16)


def test_a_conversation_continues_in_its_own_slot_without_a_copy() -> None:
    driver = Driver()
    first = driver.submit(tokens(5, 40), 8)
    driver.run()
    driver.submit(tokens(5, 40) + tuple(driver.answers[first]) + tokens(6, 5), 4)
    driver.run()
    assert not any(iteration.operations for iteration in driver.iterations)
    assert {span.slot for iteration in driver.iterations for span in iteration.spans} == {0}


def test_a_short_common_prefix_is_copied_so_that_the_long_source_stays() -> None:
    driver = Driver()
    driver.submit(tokens(5, 120), 2)
    driver.run()
    short = driver.submit(tokens(5, 32) + tokens(7, 8), 2)
    driver.run()
    copies = [operation for iteration in driver.iterations for operation in iteration.operations]
    assert copies == [CopyPrefix(0, 1, 32)]
    again = driver.submit(tokens(5, 120) + tokens(8, 3), 2)
    driver.run()
    assert (driver.cached[short], driver.cached[again]) == (32, 120)


def test_salts_keep_prompts_apart() -> None:
    driver = Driver()
    driver.submit(tokens(9, 60), 2, salt="a")
    driver.run()
    other = driver.submit(tokens(9, 60), 2, salt="b")
    same = driver.submit(tokens(9, 60), 2, salt="a")
    driver.run()
    assert driver.cached[other] == 0
    assert driver.cached[same] == 59


def test_no_reuse_when_it_is_off() -> None:
    driver = Driver(policy=Policy(prefix_reuse=False))
    driver.submit(tokens(9, 60), 2)
    driver.run()
    again = driver.submit(tokens(9, 60), 2)
    driver.run()
    assert driver.cached[again] == 0
    assert driver.planner.statistics(driver.now).cached_slots == 0


def test_unconfirmed_rows_are_not_shared() -> None:
    """A row that a stage may still fail must not be the base of another sequence."""
    driver = Driver()
    driver.submit(tokens(10, 60), 2)
    planned = driver.plan()
    assert planned is not None
    sequence = driver.submit(tokens(10, 60), 2)
    assert driver.plan() is not None
    assert driver.cached[sequence] == 0


def test_the_least_recently_used_prefix_goes_first() -> None:
    driver = Driver(limits_with(slots=3))
    for seed in (1, 2, 3):
        driver.submit(tokens(seed, 40), 2)
        driver.run()
    driver.submit(tokens(1, 40), 2)  # used again: 2 is the oldest now
    driver.run()
    driver.submit(tokens(4, 40), 2)
    driver.run()
    kept = [driver.submit(tokens(seed, 40), 2) for seed in (1, 3)]
    driver.run()
    assert [driver.cached[sequence] for sequence in kept] == [39, 39]


def test_statistics_count_queries_and_hits() -> None:
    driver = Driver()
    driver.submit(tokens(1, 40), 2)
    driver.run()
    driver.submit(tokens(1, 40), 2)
    driver.run()
    statistics = driver.planner.statistics(driver.now)
    assert (statistics.prefix_queries, statistics.prefix_hits) == (80, 39)
