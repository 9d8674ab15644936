"""`longspan bench plan`: how well placing predicts a ring."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from longspan.cli.output import format_table, human_bytes, print_json
from longspan.cli.progress import ProgressBars, progress_line

_HEADINGS = ("stages", "delay ms", "streams", "predicted/s", "actual/s", "ratio", "noise", "memory", "used")


def bench_plan(
    model: str = "demo",
    /,
    *,
    rings: tuple[str, ...] = (),
    threads: Annotated[int, Parameter(validator=Number(gte=1))] = 1,
    tokens: Annotated[int, Parameter(validator=Number(gte=8))] = 64,
    rounds: Annotated[int, Parameter(validator=Number(gte=1))] = 3,
    json: bool = False,
) -> None:
    """Compare what longspan plan predicts with rings that are then formed.

    Stages in processes of their own measure their speed, as for longspan plan
    --ring; then they form a ring, which decodes. Tokens a second are compared,
    and the memory of the stage that needs most.

    For example:

        longspan bench plan
        longspan bench plan --rings 2:10 --rings 3:25:4 --json

    Parameters
    ----------
    model
        The model to measure with.
    rings
        STAGES:DELAY or STAGES:DELAY:STREAMS, the delay in ms each way
        (default: 1:0, 2:0, 3:0, 2:10 and 3:25).
    threads
        Threads of each stage.
    tokens
        Tokens of an answer.
    rounds
        How often every ring is asked and measured.
    json
        Print the figures as JSON.
    """
    from longspan.bench.plan import CASES, parse_case
    from longspan.bench.plan import bench_plan as measure
    from longspan.model.reference import resolve

    cases = tuple(map(parse_case, rings)) or CASES
    resolve(model, progress=ProgressBars())
    with progress_line() as show:
        figures = measure(model, cases=cases, threads=threads, tokens=tokens, rounds=rounds, report=show)
    if json:
        print_json(figures)
        return
    rows = [
        (
            row.stages,
            row.delay_ms,
            row.streams,
            row.predicted,
            row.actual,
            row.ratio,
            f"{row.noise:.1%}",
            human_bytes(row.memory_predicted),
            human_bytes(row.memory_actual),
        )
        for row in figures.rows
    ]
    print(format_table(_HEADINGS, rows))
    print(f"\nlargest deviation {figures.worst:.1%}")
