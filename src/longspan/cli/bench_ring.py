"""`longspan bench ring`: what the ring costs."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from longspan.cli.output import format_table, print_json
from longspan.cli.progress import ProgressBars, progress_line


def bench_ring(
    model: str = "demo",
    /,
    *,
    threads: Annotated[int, Parameter(validator=Number(gte=1))] = 1,
    rounds: Annotated[int, Parameter(validator=Number(gte=1))] = 5,
    json: bool = False,
) -> None:
    """Measure what the ring costs on this machine.

    Four figures: our one-stage engine against a bare llama_decode loop (A B B A), a one-row frame's time outside of
    compute for each hop over loopback, the time of reading the residual stream, and the memory of half a model.

    For example:

        longspan bench ring
        longspan bench ring model.gguf --threads 4 --json

    Parameters
    ----------
    model
        The model to measure with.
    threads
        Threads of each stage, and of the bare loop.
    rounds
        Rounds of A B B A.
    json
        Print the figures as JSON.
    """
    from longspan.bench.ring import bench_ring as measure
    from longspan.model.reference import resolve

    resolve(model, progress=ProgressBars())
    with progress_line() as show:
        figures = measure(model, threads=threads, rounds=rounds, report=show)
    if json:
        print_json(figures)
        return
    rows = [
        ("decode, ratio to a bare loop", f"{figures.decode_ratio_to_bare:.3f}", f"{figures.decode_noise:.1%}"),
        ("a hop beside compute", f"{figures.hop_overhead_ms:.3f} ms", f"{figures.hop_noise:.1%}"),
        (
            f"reading the residual, {figures.callback_layers} layers",
            f"{figures.callback_overhead_ms:.3f} ms",
            f"{figures.callback_noise:.1%}",
        ),
        ("memory, half a model to the whole", f"{figures.stage_memory_ratio:.3f}", None),
    ]
    print(format_table(("figure", "value", "noise"), rows))
