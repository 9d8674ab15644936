"""`longspan bench viewers`: what an open dashboard costs."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from longspan.cli.engine_options import AtLeastOne
from longspan.cli.output import format_table, print_json
from longspan.cli.progress import ProgressBars, progress_line


def bench_viewers(
    model: str = "demo",
    /,
    *,
    viewers: Annotated[int, Parameter(validator=Number(gte=1, lte=64))] = 3,
    streams: AtLeastOne = 4,
    tokens: Annotated[int, Parameter(validator=Number(gte=2, lte=4096))] = 96,
    rounds: AtLeastOne = 5,
    stages: AtLeastOne = 1,
    threads: AtLeastOne = 1,
    json: bool = False,
) -> None:
    """Measure what people who look at the dashboard cost those who ask.

    The same requests with and without viewers, A B B A. Viewers and the client that asks are processes of their
    own; where there are few cores, what they read takes compute away too.

    For example:

        longspan bench viewers
        longspan bench viewers model.gguf --viewers 10 --stages 2 --json

    Parameters
    ----------
    model
        The model to measure with.
    viewers
        Streams of the dashboard that are open.
    streams
        Requests at the same time.
    tokens
        Tokens of each of them.
    rounds
        Rounds of A B B A.
    stages
        Parts that the model is split into.
    threads
        Threads of each stage.
    json
        Print the figures as JSON.
    """
    import uvloop

    from longspan.bench.viewers import ViewersPlan
    from longspan.bench.viewers import bench_viewers as measure
    from longspan.model.reference import resolve
    from longspan.openmp import set_waiting

    set_waiting(stages_here=stages)
    resolve(model, progress=ProgressBars())
    plan = ViewersPlan(model, viewers, streams, tokens, rounds, stages, threads)
    with progress_line() as show:
        figures = uvloop.run(measure(plan, show))
    if json:
        print_json(figures)
        return
    row = (
        figures.viewers,
        figures.streams,
        figures.tokens_per_second,
        figures.alone_tokens_per_second,
        f"{figures.ratio:.3f}",
        f"{figures.noise:.1%}",
        figures.frames,
    )
    headings = ("viewers", "requests", "tokens/s", "without viewers", "ratio", "noise", "frames seen")
    print(format_table(headings, [row]))
