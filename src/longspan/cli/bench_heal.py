"""`longspan bench heal`: what the loss of a stage costs."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from longspan.cli.engine_options import AtLeastOne, Requantize
from longspan.cli.output import format_table, print_json
from longspan.cli.progress import ProgressBars, progress_line
from longspan.openmp import set_waiting


def bench_heal(
    model: str = "demo",
    /,
    *,
    stages: Annotated[int, Parameter(validator=Number(gte=2, lte=16))] = 2,
    streams: AtLeastOne = 4,
    rounds: AtLeastOne = 7,
    threads: AtLeastOne | None = None,
    requantize: Requantize = None,
    json: bool = False,
) -> None:
    """Kill stages while answers run, and measure how long their streams pause.

    Every round kills one process (SIGKILL). Another one takes its place, it loads
    its layers, the ring forms again, and the answers go on with the same
    tokens. Times are medians over the rounds.

    For example:

        longspan bench heal
        longspan bench heal model.gguf --stages 3 --rounds 15 --json

    Parameters
    ----------
    model
        The model to measure with.
    stages
        Processes that share the layers.
    streams
        Answers that run.
    rounds
        How often a process is killed.
    threads
        Threads of each stage.
    json
        Print the figures as JSON.
    """
    import uvloop

    set_waiting()  # before the library is loaded
    from longspan.bench.heal import bench_heal as measure
    from longspan.bench.measured_model import measured_model

    _, reference = measured_model(model, requantize, ProgressBars())
    with progress_line() as show:
        figures = uvloop.run(
            measure(reference, stages=stages, streams=streams, rounds=rounds, threads=threads, report=show)
        )
    if json:
        print_json(figures)
        return
    rows = [
        ("detect: from the kill to the end of the ring", figures.detect),
        ("relaunch: until the new process has its assignment", figures.relaunch),
        ("load: until the ring has formed", figures.load),
        ("replay: until every stream has its next token", figures.replay),
        ("pause of a stream", figures.pause),
        ("pause without the load", figures.beyond_load),
        ("longest pause of all rounds", figures.longest_pause),
    ]
    print(
        format_table(
            (f"{figures.model_id} {figures.quantisation}, {stages} stages, {streams} streams", "seconds"), rows
        )
    )
