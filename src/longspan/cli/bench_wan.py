"""`longspan bench wan`: what speculation brings over distance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from longspan.cli.engine_options import AtLeastOne, Requantize
from longspan.cli.output import format_table, print_json
from longspan.cli.progress import ProgressBars, progress_line

if TYPE_CHECKING:
    from longspan.bench.wan import WanFigures
    from longspan.bench.wan_frontier import Frontier

Text = Literal["copy", "edit", "code", "prose"]
Arm = Literal["none", "ngram-suffix", "ngram-edit", "ngram-cache", "mtp", "mtp+ngram", "auto", "tree"]

_HEADINGS = (
    *("text", "delay ms", "requests", "arm", "tokens/s", "to none", "tokens a traversal"),
    *("useful rows", "stale rows", "in flight", "same tokens", "noise"),
)

QUICK_TOKENS, TOKENS = 64, 256


def bench_wan(
    model: str = "demo",
    /,
    *,
    texts: tuple[Text, ...] = ("copy", "edit", "code", "prose"),
    delays: tuple[Annotated[float, Parameter(validator=Number(gte=0, lte=60_000))], ...] | None = None,
    concurrency: tuple[AtLeastOne, ...] | None = None,
    arms: tuple[Arm, ...] = ("none", "ngram-suffix", "mtp", "mtp+ngram", "auto", "tree"),
    tokens: AtLeastOne | None = None,
    rounds: AtLeastOne = 1,
    stages: AtLeastOne = 2,
    threads: AtLeastOne = 1,
    requantize: Requantize = None,
    frontier: Literal["on", "off"] = "on",
    quick: bool = False,
    json: bool = False,
) -> None:
    """Measure what speculation brings when the stages are far apart.

    Stages in processes of their own, with an emulated delay of every link between them, answer greedily. All arms
    of a delay are resident; in each round they run forwards and then backwards, so that a machine that changes its
    speed harms all alike. Copied and novel texts are told apart: what helps one does nothing for the other.

    For example:

        longspan bench wan --quick
        longspan bench wan --texts prose --delays 100 --concurrency 1 --arms none --arms mtp --frontier off --json

    Parameters
    ----------
    model
        The model to measure with.
    texts
        copy: a passage that the model goes on repeating. edit: the same with changes. code, prose: chat answers.
    delays
        One-way delays of a link in ms (default: 0, 10, 50 and 100; with --quick 100).
    concurrency
        Numbers of requests at once (default: 1, 2, 4 and 8; with --quick 1 and 8).
    arms
        Proposers to compare. "none" must be among them. "tree" stands for --latency tree: one request at a time.
    tokens
        Tokens of an answer (default: 256; with --quick 64).
    rounds
        Rounds of all arms forwards and backwards.
    stages
        Parts that the model is split into.
    threads
        Threads of each stage.
    frontier
        Measure fixed widths and depths of windows too, on the text `copy` at the longest delay.
    quick
        Fewer and shorter runs.
    json
        Print the figures as JSON.
    """
    import asyncio

    import msgspec

    from longspan.bench.measured_model import measured_model
    from longspan.bench.wan import Wan, WanPlan
    from longspan.bench.wan_frontier import measure_frontier

    source, reference = measured_model(model, requantize, ProgressBars())
    length = tokens or (QUICK_TOKENS if quick else TOKENS)
    plan = WanPlan(
        reference,
        texts,
        delays or ((100.0,) if quick else (0.0, 10.0, 50.0, 100.0)),
        concurrency or ((1, 8) if quick else (1, 2, 4, 8)),
        arms,
        length,
        rounds,
        stages,
        threads,
    )
    widths, depths = ((4, 24, 63), (1, 4, 16)) if quick else ((2, 4, 8, 16, 32, 63), (1, 2, 4, 8, 16))

    async def measure() -> tuple[WanFigures, Frontier | None]:
        wan = Wan(plan, source, show)
        found = await wan.measure()
        if frontier == "off" or "copy" not in texts:
            return found, None
        return found, await measure_frontier(wan, max(plan.delays_ms), widths, depths, length, show)

    with progress_line() as show:
        figures, cells = asyncio.run(measure())
    if json:
        print_json({**msgspec.structs.asdict(figures), "frontier": cells})
        return
    _print(figures, cells)


def _print(figures: WanFigures, frontier: Frontier | None) -> None:
    rows = [
        (
            row.text,
            f"{row.delay_ms:g}",
            row.concurrency,
            row.arm,
            f"{row.tokens_per_second:.1f}",
            f"{row.ratio_to_none:.2f}",
            f"{row.tokens_per_traversal:.2f}",
            row.useful_rows,
            row.stale_rows,
            None if row.in_flight_average is None else f"{row.in_flight_average:.1f}",
            "yes" if row.identical else "NO",
            f"{row.noise:.1%}",
        )
        for row in figures.rows
    ]
    print(format_table(_HEADINGS, rows))
    for text in figures.texts:
        if not text.as_meant:
            print(f"The model does not go on repeating the text {text.text!r}: {text.repeated_share:.0%} of it.")
    for row in figures.rows:
        if (row.text, row.concurrency, row.arm) == ("copy", 1, "auto") and row.stage_share is not None:
            print(
                f"copy, {row.delay_ms:g} ms, auto: {row.filled_tokens_per_second:.1f} tokens/s after the fill, "
                f"{row.stage_share:.0%} of the {row.stage_rate:.1f} that the slowest stage could serve"
            )
    if frontier is None:
        return
    cells = [(cell.width, cell.depth, f"{cell.tokens_per_second:.1f}") for cell in frontier.cells]
    print(format_table(("width", "depth", "tokens/s"), cells))
    print(
        f"auto: {frontier.auto_tokens_per_second:.1f} tokens/s, {frontier.auto_to_best:.2f} of the best, "
        f"which is {frontier.best.width} x {frontier.best.depth}"
    )
