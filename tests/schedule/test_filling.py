"""Which prompts get rows, and where they are cut."""

from __future__ import annotations

from itertools import pairwise

from longspan.schedule.limits import Limits
from longspan.schedule.policy import Policy
from longspan.schedule.span import Phase
from tests.schedule.driving import Driver, limits_with

WIDE = Limits(slots=6, cells_per_slot=4096, exact_rows=1 << 20, max_rows=4096, chunk=256, token_budget=2048)
FIXED = Limits(slots=4, cells_per_slot=4096, exact_rows=64, max_rows=512, chunk=128)


def tokens(base: int, count: int) -> tuple[int, ...]:
    return tuple(base * 10_000 + i for i in range(count))


def prefills(driver: Driver) -> list[list[tuple[int, int, int]]]:
    return [
        [(s.sequence, s.start, len(s.tokens)) for s in iteration.spans if s.phase is Phase.PREFILL]
        for iteration in driver.iterations
    ]


def test_a_short_prompt_is_whole_and_a_long_one_goes_by_chunks() -> None:
    driver = Driver(WIDE)
    driver.submit(tokens(1, 500), 1)
    driver.run()
    driver.submit(tokens(2, 700), 1)
    driver.run()
    assert prefills(driver) == [[(0, 0, 500)], [(1, 0, 256)], [(1, 256, 256)], [(1, 512, 188)]]


def test_the_total_of_an_iteration_is_bounded_not_only_each_chunk() -> None:
    limits = Limits(slots=6, cells_per_slot=4096, exact_rows=1 << 20, max_rows=4096, chunk=256, token_budget=600)
    driver = Driver(limits)
    for i in range(4):
        driver.submit(tokens(i, 600), 1)
    driver.run()
    assert all(iteration.rows <= 600 for iteration in driver.iterations)
    assert all(len(iteration.spans) <= limits.max_prefill_sequences for iteration in driver.iterations)


def test_room_that_the_first_prompt_cannot_use_goes_to_the_next() -> None:
    driver = Driver(WIDE)
    driver.submit(tokens(1, 600), 1)
    driver.submit(tokens(2, 100), 1)
    first = driver.step()
    assert first is not None
    assert sorted(len(span.tokens) for span in first.spans) == [100, 256]


def test_fixed_borders_run_whole_chunks_alone() -> None:
    driver = Driver(FIXED)
    driver.submit(tokens(1, 300), 2)
    driver.submit(tokens(2, 40), 2)
    driver.run()
    chunks = [entry for entry in prefills(driver) if any(rows >= 64 for _, _, rows in entry)]
    assert chunks == [[(0, 0, 128)], [(0, 128, 128)]]
    remainders = [span for entry in prefills(driver) for span in entry if span[2] < 64]
    assert sorted(remainders) == [(0, 256, 44), (1, 0, 40)]


def test_a_large_remainder_behind_fixed_borders_runs_whole_and_alone() -> None:
    driver = Driver(FIXED)
    driver.submit(tokens(1, 128 + 70), 2)
    driver.run()
    assert prefills(driver)[:2] == [[(0, 0, 128)], [(0, 128, 70)]]


def test_whole_chunks_take_turns_with_decode_rows() -> None:
    driver = Driver(FIXED, Policy(debt_share=0.0))
    stream = driver.submit(tokens(1, 20), 60)
    driver.run_until(lambda: len(driver.answers[stream]) == 2)
    driver.iterations.clear()
    driver.submit(tokens(2, 512), 1)
    for _ in range(8):
        driver.step()
    kinds = ["chunk" if iteration.rows == 128 else "decode" for iteration in driver.iterations]
    assert kinds == ["chunk", "decode"] * 4


def test_without_mixing_phases_never_share_an_iteration() -> None:
    driver = Driver(limits_with(), Policy(mixing=False))
    for i in range(6):
        driver.submit(tokens(i, 50 + 40 * i), 20)
    driver.run()
    assert all(len({span.phase for span in iteration.spans}) == 1 for iteration in driver.iterations)
    assert driver.planner.statistics(driver.now).joined_prefill_rows == 0


def test_prefill_alone_never_runs_twice_in_a_row_while_decode_rows_are_ready() -> None:
    for policy in (Policy(), Policy(mixing=False), Policy(debt_share=0.0)):
        driver = Driver(limits_with(slots=6, cells=2000), policy)
        stream = driver.submit(tokens(1, 20), 1900)
        while len(driver.answers[stream]) < 2:
            driver.step()
        driver.iterations.clear()
        for i in range(5):
            driver.submit(tokens(2 + i, 400), 2)
        while len(driver.ends) < 5:
            driver.step()
        alone = [all(span.phase is Phase.PREFILL for span in iteration.spans) for iteration in driver.iterations]
        assert not any(first and second for first, second in pairwise(alone))
