"""`longspan bench profile`: where a token's time goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from longspan.cli.engine_options import AtLeastOne
from longspan.cli.output import format_table, print_json
from longspan.cli.progress import ProgressBars, progress_line


def bench_profile(
    model: str = "demo",
    /,
    *,
    stages: AtLeastOne = 1,
    link_delay: Annotated[float, Parameter(validator=Number(gte=0, lte=60_000))] = 0.0,
    tokens: Annotated[int, Parameter(validator=Number(gte=2, lte=192))] = 64,
    rounds: AtLeastOne = 2,
    threads: AtLeastOne = 1,
    http: Literal["on", "off"] = "on",
    picture: Path | None = None,
    json: bool = False,
) -> None:
    """Show where a token's time goes: planning, framing, links, compute of each stage, sampling, texts, HTTP.

    One stream without speculation, so that every token is one trip around the ring. What is listed as "beside" runs
    while a stage computes, and no token waits for it. Sampling is known where the last stage is in this process.

    For example:

        longspan bench profile
        longspan bench profile --stages 2 --link-delay 25 --picture profile.png
        longspan bench profile model.gguf --http off --json

    Parameters
    ----------
    model
        The model to measure with.
    stages
        Parts that it is split into.
    link_delay
        Emulated one-way delay of links between stages, in ms.
    tokens
        Tokens of an answer.
    rounds
        Answers that are measured.
    threads
        Threads of each stage.
    http
        Also measure what the API adds.
    picture
        Draw it (needs matplotlib: the extra "pictures").
    json
        Print the figures as JSON.
    """
    import uvloop

    from longspan.bench.profile import bench_profile as measure
    from longspan.bench.profile import draw_profile
    from longspan.model.reference import resolve
    from longspan.openmp import set_waiting

    set_waiting()
    resolve(model, progress=ProgressBars())
    with progress_line() as show:
        figures = uvloop.run(
            measure(
                model,
                stages=stages,
                link_delay_ms=link_delay,
                tokens=tokens,
                rounds=rounds,
                threads=threads,
                http=http == "on",
                report=show,
            )
        )
    if picture is not None:
        draw_profile(figures, picture)
    if json:
        print_json(figures)
        return
    print(f"a token: {figures.token_ms:.2f} ms; {figures.outside:.1%} of it is neither compute nor on links\n")
    rows = [
        (part.group, part.name, f"{part.ms:.3f}", f"{part.share:.1%}", "█" * round(30 * part.share))
        for part in figures.parts
    ]
    print(format_table(("who", "what", "ms", "share", ""), rows))
