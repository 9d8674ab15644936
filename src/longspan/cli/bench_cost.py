"""`longspan bench cost`: how well the cost models predict."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from longspan.cli.engine_options import AtLeastOne
from longspan.cli.output import format_table, print_json
from longspan.cli.progress import ProgressBars, progress_line

if TYPE_CHECKING:
    from longspan.bench.cost import CostReport


def bench_cost(
    trace: Path | None = None,
    /,
    *,
    model: str = "demo",
    stages: AtLeastOne = 1,
    seconds: Annotated[float, Parameter(validator=Number(gt=0))] = 180.0,
    history: AtLeastOne = 6000,
    threads: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    keep: Path | None = None,
    json: bool = False,
) -> None:
    """Judge the cost models on a trace of the real engine.

    Without a trace, one is recorded first: six requests at a time, short new prompts and prompts that go on from a
    cached document, at histories of up to 6000 tokens. Every iteration is predicted from what came before it; the
    noise floor is how much iterations of one shape differ by themselves.

    For example:

        longspan bench cost --json
        longspan bench cost --seconds 60 --keep trace.jsonl
        longspan bench cost trace.jsonl

    Parameters
    ----------
    trace
        A trace file, from `longspan serve --trace` or from --keep.
    model
        The model to record with.
    stages
        Stages to record with.
    seconds
        How long to record, after the documents are read.
    history
        Tokens of a document.
    threads
        Threads of each stage (default: its share of the cores).
    keep
        Keep the recorded trace in this file.
    json
        Print the figures as JSON.
    """
    from longspan.bench.cost import judge_cost_models
    from longspan.observe.trace_reader import read_trace

    if trace is not None:
        _print(judge_cost_models(read_trace(trace)), json)
        return
    from longspan.bench.cost_recording import CostRecording
    from longspan.model.reference import resolve

    resolve(model, progress=ProgressBars())
    recording = CostRecording(model, stages=stages, seconds=seconds, history=history, threads=threads)
    with tempfile.TemporaryDirectory() as folder:
        path = keep or Path(folder) / "trace.jsonl"
        with progress_line() as show:
            recording.record(path, show)
        _print(judge_cost_models(read_trace(path)), json)


def _print(report: CostReport, json: bool) -> None:
    if json:
        print_json(report)
        return
    print(
        f"{report.iterations} iterations on {report.stages} stage(s), {report.judged} judged, histories to "
        f"{report.longest_history} tokens; errors in percent"
    )
    rows: list[tuple[object, ...]] = [
        (
            row.model,
            100 * row.mean_relative_error,
            100 * row.p95_relative_error,
            100 * row.better_than_ema,
            _percent(row.decode),
            _percent(row.prefill),
            _percent(row.mixed),
        )
        for row in report.rows
    ]
    if report.noise_floor is not None:
        floor = report.noise_floor
        rows.append(
            (
                "noise floor",
                100 * floor.mean_relative_error,
                100 * floor.p95_relative_error,
                None,
                None,
                None,
                None,
            )
        )
    print(format_table(("model", "mean", "p95", "better than ema", "decode", "prefill", "mixed"), rows))


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value
