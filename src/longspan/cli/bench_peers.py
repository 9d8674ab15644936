"""`longspan bench peers`: beside other servers."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from longspan.cli.engine_options import AtLeastOne, Requantize
from longspan.cli.output import format_table, print_json
from longspan.cli.progress import ProgressBars, progress_line

Text = Literal["copy", "edit", "code", "prose"]
Peer = Literal["llama.cpp", "llama.cpp-rpc", "transformers"]


def bench_peers(
    model: str = "demo",
    /,
    *,
    peers: tuple[Peer, ...] = ("llama.cpp", "llama.cpp-rpc", "transformers"),
    texts: tuple[Text, ...] = ("prose", "copy"),
    concurrency: tuple[AtLeastOne, ...] = (1, 4, 8),
    delays: tuple[Annotated[float, Parameter(validator=Number(gte=0, lte=60_000))], ...] = (50.0,),
    tokens: AtLeastOne = 64,
    rounds: AtLeastOne = 3,
    threads: AtLeastOne | None = None,
    rpc_server: Path | None = None,
    transformers_python: Path | None = None,
    requantize: Requantize = None,
    json: bool = False,
) -> None:
    """Measure side by side with other servers: the same file, prompts, token counts and threads, A B B A.

    llama.cpp is its server out of xllamacpp, on one machine. llama.cpp-rpc is its own way to split a model,
    llama-server and rpc-server with a delayed link between them; Longspan is then split in two with the same delay.
    transformers is Hugging Face's library on one machine. A peer that is not here has one row that says why.

    For example:

        longspan bench peers
        longspan bench peers --concurrency 1 --texts copy --json
        longspan bench peers --peers llama.cpp-rpc --rpc-server llama.cpp/build/bin/ggml-rpc-server --delays 50
        longspan bench peers --peers transformers --transformers-python other-venv/bin/python

    Parameters
    ----------
    model
        The model to measure with.
    peers
        Which of them to measure.
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
    transformers_python
        An interpreter with torch, transformers, accelerate and gguf (default: this one).
    json
        Print the figures as JSON.
    """
    from longspan.bench.measured_model import measured_model
    from longspan.bench.peer_kinds import PeerPrograms
    from longspan.bench.peers import Peers, PeersPlan
    from longspan.ring.llama_loader import default_threads

    programs = PeerPrograms(rpc_server, str(transformers_python or sys.executable))
    count = threads or default_threads()
    plan = PeersPlan(texts, concurrency, delays, tokens, rounds, count, peers, programs)
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
            None if row.delay_ms is None else f"{row.delay_ms:g}",
            row.tokens_per_second,
            row.peer_tokens_per_second,
            row.ratio,
            None if row.noise is None else f"{row.noise:.1%}",
        )
        for row in figures.rows
    ]
    headings = ("peer", "text", "requests", "delay ms", "tokens/s", "peer's", "ratio", "noise")
    print(format_table(headings, rows))
    for row in figures.rows:
        if row.absent is not None:
            print(f"{row.peer}: not measured, {row.absent}")
