"""Cost models judged on a trace whose truth is known."""

from __future__ import annotations

import random

import msgspec
import pytest

from longspan.bench.cost import WARM_UP, judge_cost_models
from longspan.errors import UsageError
from longspan.lab.run import simulate
from longspan.lab.scenarios import scenario
from longspan.schedule.trace import TraceRecord


@pytest.fixture(scope="module")
def records() -> list[TraceRecord]:
    return simulate(scenario("cache-orders"), "mixed", costs="two-cores", stages=2)[1].records


def noisy(records: list[TraceRecord], noise: float) -> list[TraceRecord]:
    generator = random.Random(3)
    return [
        msgspec.structs.replace(
            record,
            stages=tuple(
                msgspec.structs.replace(stage, worked=stage.worked * generator.gauss(1.0, noise))
                for stage in record.stages
            ),
        )
        for record in records
    ]


def test_the_analytic_model_finds_a_linear_truth(records: list[TraceRecord]) -> None:
    report = judge_cost_models(records)
    rows = {row.model: row for row in report.rows}
    assert set(rows) == {"analytic", "bucketed", "ema"}
    assert rows["analytic"].mean_relative_error < 0.05
    assert rows["analytic"].better_than_ema >= 0.35
    assert rows["ema"].better_than_ema == 0.0
    assert report.stages == 2
    assert report.longest_history > 768


def test_iterations_that_copied_are_left_out(records: list[TraceRecord]) -> None:
    copied = sum(record.copied > 0 for record in records)
    report = judge_cost_models(records)
    assert copied > 0
    assert report.left_out == copied
    assert report.judged == 2 * (len(records) - copied - WARM_UP)


def test_the_noise_floor_is_the_noise(records: list[TraceRecord]) -> None:
    """The mean absolute deviation of a normal distribution is 0.8 of its standard deviation."""
    many = [record for _ in range(12) for record in records]
    floor = judge_cost_models(noisy(many, 0.1)).noise_floor
    assert floor is not None
    assert floor.mean_relative_error == pytest.approx(0.08, rel=0.2)
    assert floor.p95_relative_error > 2 * floor.mean_relative_error
    quiet = judge_cost_models(many).noise_floor
    assert quiet is not None
    assert quiet.mean_relative_error < 0.005


def test_a_prediction_rests_on_the_past_alone(records: list[TraceRecord]) -> None:
    """What comes later in the trace changes nothing about the errors before."""
    half = len(records) // 2
    slower = [
        msgspec.structs.replace(
            record,
            stages=tuple(msgspec.structs.replace(stage, worked=9 * stage.worked) for stage in record.stages),
        )
        for record in records[half:]
    ]
    first = judge_cost_models(records[:half])
    both = judge_cost_models(records[:half] + slower)
    for before, after in zip(first.rows, both.rows, strict=True):
        share = first.judged / both.judged
        assert after.mean_relative_error >= share * before.mean_relative_error - 1e-5
    assert both.rows[0].mean_relative_error > first.rows[0].mean_relative_error


def test_a_short_trace_judges_nothing(records: list[TraceRecord]) -> None:
    with pytest.raises(UsageError, match="more than 50 are needed"):
        judge_cost_models(records[:20])
