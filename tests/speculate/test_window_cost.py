from __future__ import annotations

import pytest

from longspan.speculate.window_cost import PRESUMED_ROW, WindowCost


def true_seconds(rows: int) -> float:
    return 0.0100 + 0.0030 * (rows - 1)


def test_nothing_is_known_before_anything_was_observed() -> None:
    cost = WindowCost()
    assert cost(1, 0.0) == cost(16, 0.0) == 0.0
    cost.observe(0, 1, 0.1)
    cost.observe(3, 1, 0.0)
    assert cost(1, 0.0) == 0.0


def test_single_rows_alone_do_not_make_windows_look_dear() -> None:
    """A window must be tried to learn what it costs, so it is presumed to be cheap."""
    cost = WindowCost()
    for _ in range(1000):
        cost.observe(1, 1, true_seconds(1))
    assert cost(1, 0.0) == pytest.approx(true_seconds(1), rel=0.01)
    assert cost(9, 0.0) == pytest.approx((1 + 8 * PRESUMED_ROW) * true_seconds(1), rel=0.01)


def test_a_few_windows_tell_what_a_row_costs() -> None:
    cost = WindowCost()
    for _ in range(50):
        cost.observe(1, 1, true_seconds(1))
    for _ in range(8):
        cost.observe(5, 1, true_seconds(5))
    assert cost(5, 0.0) == pytest.approx(true_seconds(5), rel=0.12)
    for count in range(200):
        cost.observe(1 + count % 8, 1, true_seconds(1 + count % 8))
    for rows in (1, 4, 8, 16):
        assert cost(rows, 0.0) == pytest.approx(true_seconds(rows), rel=0.12)


def test_what_was_learned_about_rows_outlasts_a_long_stretch_of_single_ones() -> None:
    cost = WindowCost()
    for count in range(200):
        cost.observe(1 + count % 8, 1, true_seconds(1 + count % 8))
    for _ in range(300):
        cost.observe(1, 1, true_seconds(1))
    assert cost(8, 0.0) == pytest.approx(true_seconds(8), rel=0.15)


def test_a_machine_that_slows_down_is_followed_within_a_few_iterations() -> None:
    cost = WindowCost()
    for count in range(200):
        cost.observe(1 + count % 8, 1, true_seconds(1 + count % 8))
    for count in range(20):
        cost.observe(1 + count % 8, 1, 2 * true_seconds(1 + count % 8))
    assert cost(8, 0.0) == pytest.approx(2 * true_seconds(8), rel=0.15)


def test_one_stall_changes_little() -> None:
    cost = WindowCost()
    for count in range(100):
        cost.observe(1 + count % 8, 1, true_seconds(1 + count % 8))
    cost.observe(1, 1, 5.0)
    assert cost(8, 0.0) < 1.5 * true_seconds(8)


def test_passes_are_told_from_rows() -> None:
    """Four neighbours with as many rows each pass together; one longer window among them takes a pass more."""
    cost = WindowCost()
    for count in range(300):
        rows, passes = ((4, 1), (6, 2), (12, 1), (10, 3))[count % 4]
        cost.observe(rows, passes, 0.010 * passes + 0.003 * (rows - passes))
    assert cost(16, 0.0) == pytest.approx(0.010 + 15 * 0.003, rel=0.1)
    cost.observe(1, 2, 0.1)  # cannot be, and changes nothing
    assert cost(16, 0.0) == pytest.approx(0.010 + 15 * 0.003, rel=0.1)
