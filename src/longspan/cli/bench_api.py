"""`longspan bench api`: what the API adds to a token."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from longspan.cli.engine_options import AtLeastOne
from longspan.cli.output import format_table, print_json
from longspan.cli.progress import ProgressBars, progress_line


def bench_api(
    model: str = "demo",
    /,
    *,
    streams: tuple[AtLeastOne, ...] = (1, 32),
    tokens: Annotated[int, Parameter(validator=Number(gte=2, lte=192))] = 32,
    rounds: AtLeastOne = 5,
    threads: AtLeastOne = 1,
    json: bool = False,
) -> None:
    """Measure what the API adds to a token, against the engine called directly.

    One engine in this process is asked both ways, A B B A: by a client process that streams completions over HTTP,
    and by coroutines that read the engine's streams. Without speculation, so each token is an event.

    For example:

        longspan bench api
        longspan bench api model.gguf --streams 1 --streams 8 --json

    Parameters
    ----------
    model
        The model to measure with.
    streams
        Numbers of streams at the same time.
    tokens
        Tokens of each stream.
    rounds
        Rounds of A B B A for each of them.
    threads
        Threads of the engine.
    json
        Print the figures as JSON.
    """
    import uvloop

    from longspan.bench.api import bench_api as measure
    from longspan.model.reference import resolve
    from longspan.openmp import set_waiting

    set_waiting()
    resolve(model, progress=ProgressBars())
    with progress_line() as show:
        figures = uvloop.run(
            measure(model, streams=streams, tokens=tokens, rounds=rounds, threads=threads, report=show)
        )
    if json:
        print_json(figures)
        return
    rows = [
        (
            row.streams,
            f"{row.added_ms:.3f} ms",
            f"{row.added_cpu_ms:.3f} ms",
            row.token_ms,
            row.direct_token_ms,
            row.first_token_ms,
            row.direct_first_token_ms,
            f"{row.throughput_ratio:.3f}",
            f"{row.noise:.1%}",
        )
        for row in figures.rows
    ]
    headings = (
        "streams",
        "added",
        "of it CPU",
        "token ms",
        "direct",
        "first ms",
        "direct",
        "throughput, ratio",
        "noise",
    )
    print(format_table(headings, rows))
