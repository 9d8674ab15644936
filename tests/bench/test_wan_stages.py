"""The figures after the fill, on iterations whose figures are known."""

from __future__ import annotations

import pytest

from longspan.bench.wan_stages import Filled, filled, typical
from longspan.schedule.span import Phase
from longspan.schedule.trace import SpanShape, StageTime, TraceRecord


def record(number: int, completed: float, rows: int, useful: int, phase: Phase = Phase.VERIFY) -> TraceRecord:
    """An iteration that took stage 0 two and stage 1 four hundredths of a second."""
    stages = tuple(StageTime(stage, 0.0, 0.02 * (stage + 1), 0.0, 1) for stage in range(2))
    return TraceRecord(
        iteration=number,
        planned_at=completed - 0.5,
        completed_at=completed,
        spans=(SpanShape(0, 0, 10, rows, phase, rows),),
        operations=0,
        copied=0,
        predicted={},
        decode_seconds=0.0,
        allowance=0.0,
        guard="open",
        running=1,
        waiting=0,
        samples=rows,
        failures=0,
        stages=stages,
        useful=useful,
        stale=rows - useful,
    )


def test_the_slowest_stage_and_the_time_after_the_fill_count() -> None:
    run = [
        record(0, 0.5, 20, 0, Phase.PREFILL),
        record(1, 1.0, 1, 1),
        record(2, 1.1, 8, 8),
        record(3, 1.2, 8, 4),
        record(4, 1.4, 8, 8),
    ]
    found = filled(run)
    assert found is not None
    assert found.tokens_per_second == pytest.approx(20 / 0.4)
    assert found.stage_rate == pytest.approx(24 / 0.12)
    assert found.share == pytest.approx(0.25)


def test_while_prompts_run_the_ring_is_not_filled() -> None:
    run = [record(0, 0.5, 1, 1), record(1, 1.0, 9, 0, Phase.PREFILL), record(2, 1.5, 1, 1), record(3, 2.0, 1, 1)]
    found = filled(run)
    assert found is not None
    assert found.tokens_per_second == pytest.approx(2.0)


def test_nothing_after_the_fill_has_no_figures() -> None:
    assert filled([]) is None
    assert filled([record(0, 1.0, 1, 1)]) is None
    assert filled([record(0, 1.0, 9, 0, Phase.PREFILL)]) is None
    assert typical([None]) is None
    assert typical([None, Filled(1.0, 2.0), Filled(3.0, 4.0), Filled(2.0, 9.0)]) == Filled(2.0, 4.0)
