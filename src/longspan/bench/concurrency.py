"""Throughput by concurrent requests, side by side with llama.cpp's own server on the same file."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import msgspec

from longspan.bench.child_server import child_server
from longspan.bench.paired import paired
from longspan.bench.peer_server import PeerOptions
from longspan.errors import LongspanError
from longspan.model.source import GgufSource, ModelSource
from longspan.openmp import VARIABLES

CELLS = 512
_PEER_FIELDS = {"cache_prompt": False}


class ConcurrencyRow(msgspec.Struct, frozen=True):
    """One number of concurrent requests: all streams together, over HTTP, medians over rounds.

    ratio: ours over the peer's. noise: relative spread of one arm within a round, median.
    """

    concurrency: int
    tokens_per_second: float
    peer_tokens_per_second: float
    ratio: float
    noise: float


class ConcurrencyFigures(msgspec.Struct, frozen=True):
    """rows, and scaling: our tokens a second at 8 requests over those at 1 (None when not measured).

    quantisation: of the file that both servers hold.
    """

    rows: tuple[ConcurrencyRow, ...]
    scaling: float | None
    threads: int
    tokens: int
    peer: str
    model: str
    quantisation: str


class Load:
    """A number of requests at the same time, each of a fixed length."""

    def __init__(self, url: str, tokens: int, fields: dict[str, Any]) -> None:
        self._client = httpx.AsyncClient(base_url=url, timeout=600.0, limits=httpx.Limits(max_connections=None))
        self._tokens = tokens
        self._fields = fields

    async def tokens_per_second(self, concurrency: int, seed: int) -> float:
        """Generated tokens of all requests over the time until the last has ended."""
        started = time.perf_counter()
        counts = await asyncio.gather(*(self._ask(100 * seed + number) for number in range(concurrency)))
        return sum(counts) / (time.perf_counter() - started)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _ask(self, number: int) -> int:
        # The number comes first, so that no prompt is the prefix of another one.
        body = {
            "model": "default",
            "prompt": f"{number}. Write about the history of bridges, and about those who built them:",
            "max_tokens": self._tokens,
            "temperature": 0,
            "ignore_eos": True,
            **self._fields,
        }
        response = await self._client.post("/v1/completions", json=body)
        if response.status_code != 200:
            raise LongspanError(f"the server answered {response.status_code}: {response.text[:500]}")
        return int(response.json()["usage"]["completion_tokens"])


async def bench_concurrency(
    source: ModelSource,
    model: str,
    *,
    levels: Sequence[int],
    rounds: int,
    tokens: int,
    threads: int,
    report: Callable[[str], None],
) -> ConcurrencyFigures:
    """Both servers resident, each level measured A B B A. Raises LongspanError."""
    if not isinstance(source, GgufSource):
        raise LongspanError("the peer reads a GGUF file: give a .gguf or a reference to one, not a layer package")
    slots = max(levels)
    ours = ["-m", "longspan", "serve", model, "--port", "0", "--quiet", "--proposer", "none"]
    ours += ["--threads", str(threads), "--slots", str(slots), "--context", str(CELLS)]
    options = PeerOptions(str(source.path), threads, slots, CELLS)
    peer = ["-m", "longspan.bench.peer_server", msgspec.json.encode(options).decode()]
    report("starting both servers")
    # The peer's threads wait as its builder chose, ours as we do.
    async with child_server(ours) as our_url, child_server(peer, without=VARIABLES) as peer_url:
        arms = (Load(our_url, tokens, {}), Load(peer_url, tokens, _PEER_FIELDS))
        try:
            rows = [await _level(arms, level, rounds, report) for level in levels]
        finally:
            for arm in arms:
                await arm.close()
    by_level = {row.concurrency: row.tokens_per_second for row in rows}
    scaling = by_level[8] / by_level[1] if 1 in by_level and 8 in by_level else None
    known = source.description
    peer_name = "llama.cpp server (xllamacpp)"
    return ConcurrencyFigures(tuple(rows), scaling, threads, tokens, peer_name, known.model_id, known.quantisation)


async def _level(arms: tuple[Load, Load], level: int, rounds: int, report: Callable[[str], None]) -> ConcurrencyRow:
    report(f"{level} requests: warm-up")
    for arm in arms:
        await arm.tokens_per_second(level, 0)
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        report(f"{level} requests: round {number + 1} of {rounds}")
        for index in (0, 1, 1, 0):
            found[index].append(await arms[index].tokens_per_second(level, number + 1))
    figures = paired(*found)
    return ConcurrencyRow(
        level, statistics.median(found[0]), statistics.median(found[1]), figures.ratio, figures.noise
    )
