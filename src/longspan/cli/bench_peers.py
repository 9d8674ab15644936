"""`longspan bench peers`: beside other servers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from longspan.cli.engine_options import AtLeastOne, Requantize
from longspan.cli.output import format_table, print_json
from longspan.cli.progress import ProgressBars, progress_line

Text = Literal["copy", "edit", "code", "prose"]


def bench_peers(
    model: str = "demo",
    /,
    *,
    texts: tuple[Text, ...] = ("prose", "copy"),
    concurrency: tuple[AtLeastOne, ...] = (1, 4, 8),
    delays: tuple[Annotated[float, Parameter(validator=Number(gte=0, lte=60_000))], ...] = (50.0,),
    tokens: AtLeastOne = 64,
    rounds: AtLeastOne = 3,
    threads: AtLeastOne | None = None,
    rpc_server: Path | None = None,
    requantize: Requantize = None,
    json: bool = False,
) -> None:
    """Measure side by side with other servers: the same file, prompts, token counts and threads, A B B A.

    On one machine the peer is llama.cpp's server out of xllamacpp. With --rpc-server it is also llama.cpp's own way
    to split a model, llama-server and rpc-server, with a delayed link between them; Longspan is then split in two
    with the same delay.

    For example:

        longspan bench peers
        longspan bench peers --concurrency 1 --texts copy --json
        longspan bench peers --rpc-server llama.cpp/build/bin/rpc-server --delays 50

    Parameters
    ----------
    model
        The model to measure with.
    texts
        copy: a passage that the model goes on repeating. edit: the same with changes. code, prose: chat answers.
    concurrency
        Numbers of requests at once.
    delays
        One-way delays in ms between the two halves of a split model.
    tokens
        Tokens of each answer.
    rounds
        Rounds of A B B A for each condition.
    threads
        Threads of each process (default: all cores).
    rpc_server
        llama.cpp's rpc-server, built with RPC; llama-server of the same build lies beside it.
    json
        Print the figures as JSON.
    """
    from longspan.bench.measured_model import measured_model
    from longspan.bench.peers import Peers, PeersPlan
    from longspan.ring.llama_loader import default_threads

    plan = PeersPlan(texts, concurrency, delays, tokens, rounds, threads or default_threads(), rpc_server)
    source, reference = measured_model(model, requantize, ProgressBars())
    with progress_line() as show:
        figures = asyncio.run(Peers(plan, source, reference, show).measure())
    if json:
        print_json(figures)
        return
    print(f"{figures.model}, {figures.quantisation}, {figures.threads} threads, {figures.tokens} tokens each\n")
    rows = [
        (
            row.peer,
            row.text,
            row.concurrency,
            f"{row.delay_ms:g}",
            row.tokens_per_second,
            row.peer_tokens_per_second,
            row.ratio,
            f"{row.noise:.1%}",
        )
        for row in figures.rows
    ]
    headings = ("peer", "text", "requests", "delay ms", "tokens/s", "peer's", "ratio", "noise")
    print(format_table(headings, rows))
