"""The planner bench measures what it says."""

from __future__ import annotations

from longspan.bench.planner import measure_planner


def test_most_running_sequences_decode_in_a_plan() -> None:
    """One sequence ends in every fourth plan on the average, so a few of the 32 are new and in their prefill."""
    row = measure_planner(32, 64, plans=40)
    assert row.decode_rows >= 24
    assert 0 < row.plan_us_p50 <= row.plan_us_p99
    assert 0 < row.complete_us_p50 <= row.complete_us_p99


def test_a_plan_grows_no_worse_than_linearly() -> None:
    """Eight times the sequences; the factor leaves room for a busy machine and its caches."""
    small = min(measure_planner(32, 256, plans=60).plan_us_p50 for _ in range(3))
    large = min(measure_planner(256, 2048, plans=60).plan_us_p50 for _ in range(3))
    assert large < 8 * 2.5 * small


def test_waiting_sequences_cost_next_to_nothing() -> None:
    few = min(measure_planner(64, 64, plans=60).plan_us_p50 for _ in range(3))
    many = min(measure_planner(64, 4096, plans=60).plan_us_p50 for _ in range(3))
    assert many < 3 * few
