"""`longspan lab ring`: the lab's ring against a real one."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from longspan.cli.engine_options import Requantize
from longspan.cli.output import format_table, print_json
from longspan.cli.progress import ProgressBars, progress_line


def lab_ring(
    model: str = "demo",
    /,
    *,
    tokens: Annotated[int, Parameter(validator=Number(gte=32))] = 160,
    requantize: Requantize = None,
    json: bool = False,
) -> None:
    """Compare windows of drafts in virtual time with the same windows over two processes.

    Three settings of width, depth and link delay are measured to learn what the stages and links take; six others
    are then predicted by running the server's own planner in virtual time, and measured.

    For example:

        longspan lab ring
        longspan lab ring --tokens 256 --json

    Parameters
    ----------
    model
        The model to measure with.
    tokens
        Tokens of each answer.
    json
        Print the figures as JSON.
    """
    from longspan.bench.measured_model import measured_model
    from longspan.bench.ring_model import RingModel

    source, reference = measured_model(model, requantize, ProgressBars())
    with progress_line() as show:
        figures = RingModel(reference, source, tokens, show).compare()
    if json:
        print_json(figures)
        return
    print(f"{figures.model}, {figures.quantisation}, answers of {figures.tokens} tokens")
    headings = ("delay ms", "width", "depth", "tokens/s", "lab", "off by", "stale rows", "lab", "off by")
    rows = [
        (
            f"{row.delay_ms:g}",
            row.width,
            row.depth,
            row.tokens_per_second,
            row.lab_tokens_per_second,
            f"{row.rate_error:+.1%}",
            row.stale_rows,
            row.lab_stale_rows,
            f"{row.stale_error:+.1%}",
        )
        for row in figures.rows
    ]
    print(format_table(headings, rows))
    print(
        f"\nworst: tokens/s {figures.worst_rate_error:.1%}, stale rows {figures.worst_stale_error:.1%}; "
        f"repeats of the fitted settings differ by up to {figures.noise:.1%}"
    )
