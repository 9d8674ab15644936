"""`longspan bench concurrency`: throughput by concurrent requests, beside llama.cpp's own server."""

from __future__ import annotations

import asyncio

from longspan.cli.engine_options import AtLeastOne, Requantize
from longspan.cli.output import format_table, print_json
from longspan.cli.progress import ProgressBars, progress_line


def bench_concurrency(
    model: str = "demo",
    /,
    *,
    concurrency: tuple[int, ...] = (1, 4, 8, 16),
    rounds: AtLeastOne = 3,
    tokens: AtLeastOne = 64,
    threads: AtLeastOne | None = None,
    requantize: Requantize = None,
    json: bool = False,
) -> None:
    """Measure throughput by concurrent requests, side by side with llama.cpp's own server.

    Both servers hold the same file with the same number of threads and are asked over HTTP, A B B A in one run.

    For example:

        longspan bench concurrency
        longspan bench concurrency model.gguf --concurrency 1 --concurrency 8 --json

    Parameters
    ----------
    model
        The model to measure with.
    concurrency
        Numbers of requests at the same time.
    rounds
        Rounds of A B B A for each of them.
    tokens
        Tokens that each request generates.
    threads
        Threads of each server (default: all cores).
    json
        Print the figures as JSON.
    """
    from longspan.bench.concurrency import bench_concurrency as measure
    from longspan.bench.measured_model import measured_model
    from longspan.ring.llama_loader import default_threads

    source, reference = measured_model(model, requantize, ProgressBars())
    with progress_line() as show:
        figures = asyncio.run(
            measure(
                source,
                reference,
                levels=concurrency,
                rounds=rounds,
                tokens=tokens,
                threads=threads or default_threads(),
                report=show,
            )
        )
    if json:
        print_json(figures)
        return
    rows = [
        (row.concurrency, row.tokens_per_second, row.peer_tokens_per_second, row.ratio, f"{row.noise:.1%}")
        for row in figures.rows
    ]
    print(f"{figures.model}, {figures.quantisation}, {figures.threads} threads")
    print(format_table(("requests", "tokens/s", figures.peer, "ratio", "noise"), rows))
    if figures.scaling is not None:
        print(f"\n8 requests over 1: {figures.scaling:.2f}")
