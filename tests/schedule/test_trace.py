"""Trace records: exact shapes, predictions before, timings after."""

from __future__ import annotations

from pathlib import Path

import pytest

from longspan.errors import UsageError
from longspan.observe.trace_reader import read_trace
from longspan.schedule.geometry import geometry_of
from longspan.schedule.span import IterationResult, StageTiming
from longspan.schedule.trace import Completion, TraceRecord, encode_trace, trace_record
from tests.schedule.driving import Driver


def traced_run() -> tuple[Driver, list[TraceRecord]]:
    driver = Driver()
    for i in range(5):
        driver.submit(tuple(range(100 * i, 100 * i + 60 + 7 * i)), 12)
    records = []
    while (planned := driver.plan()) is not None:
        result = planned[1]
        timings = (StageTiming(0, 1.0, 1.25, 2.0, 2, 0.5), StageTiming(1, 2.0, 2.0, 2.5))
        result = IterationResult(result.iteration, result.samples, result.failures, timings)
        driver.complete(result)
        assert driver.planner.last_completed is not None
        records.append(trace_record(Completion(driver.planner.last_completed, result, driver.now)))
    return driver, records


def test_a_record_has_the_exact_shape_of_its_iteration() -> None:
    driver, records = traced_run()
    assert len(records) == len(driver.iterations)
    for iteration, record in zip(driver.iterations, records, strict=True):
        assert record.iteration == iteration.id
        assert record.geometry == geometry_of(iteration.spans)
        assert [(span.sequence, span.slot, span.start, span.rows) for span in record.spans] == [
            (span.sequence, span.slot, span.start, len(span.tokens)) for span in iteration.spans
        ]
    stage = records[0].stages[0]
    assert (stage.waited, stage.worked, stage.callback, stage.sub_batches) == (0.25, 0.75, 0.5, 2)


def test_predictions_are_from_before() -> None:
    _, records = traced_run()
    assert records[0].predicted == {}
    assert set(records[1].predicted) == {0, 1}
    assert records[-1].predicted[0] == pytest.approx(0.75, rel=0.2)
    assert records[-1].predicted[1] == pytest.approx(0.5, rel=0.2)


def test_a_trace_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    _, records = traced_run()
    path = tmp_path / "trace.jsonl"
    path.write_bytes(encode_trace(records) + b"\n")
    assert list(read_trace(path)) == records


def test_a_bad_trace_is_named_by_line(tmp_path: Path) -> None:
    _, records = traced_run()
    path = tmp_path / "trace.jsonl"
    path.write_bytes(encode_trace(records[:2]) + b'{"iteration": "x"}\n')
    with pytest.raises(UsageError, match=r"line 3, is not a trace record"):
        list(read_trace(path))
    with pytest.raises(UsageError, match="cannot be read"):
        list(read_trace(tmp_path / "none.jsonl"))
