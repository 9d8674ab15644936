"""What the API adds to a token, against the engine called directly: one engine, asked both ways in turn."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence

import msgspec

from longspan.bench.line_client import LineClient, line_client
from longspan.bench.paired import paired, paired_differences
from longspan.bench.prompts import prompt_of_length
from longspan.bench.served_engine import served_engine
from longspan.bench.stream_client import StreamOrder, StreamTimes
from longspan.engine import Engine, EngineOptions
from longspan.request import GenerationRequest

CLIENT = "longspan.bench.stream_client"
PROMPT_TOKENS = 16
CELLS = 256


class ApiRow(msgspec.Struct, frozen=True):
    """One number of streams at the same time; medians over rounds of A B B A.

    token_ms, direct_token_ms: time between two tokens of a stream. added_ms: their difference within a round.
    added_cpu_ms: processor time of the thread that speaks HTTP, for each token, beyond what reading the engine's
    streams on it takes; other programs on the machine hardly change it.
    first_token_ms, direct_first_token_ms: from asking to the first token, of the streams' median.
    tokens_per_second, direct_tokens_per_second: all streams together, from asking to the last end.
    throughput_ratio: of the API over direct, within a round. noise: relative spread of the throughput of one arm
    within a round.
    """

    streams: int
    token_ms: float
    direct_token_ms: float
    added_ms: float
    added_cpu_ms: float
    first_token_ms: float
    direct_first_token_ms: float
    tokens_per_second: float
    direct_tokens_per_second: float
    throughput_ratio: float
    noise: float


class ApiFigures(msgspec.Struct, frozen=True):
    """Results of `longspan bench api`."""

    rows: tuple[ApiRow, ...]
    tokens: int
    rounds: int
    threads: int


class _Run(msgspec.Struct, frozen=True):
    """One arm, once. token, first, cpu: seconds; cpu: of this thread, for each token. rate: tokens a second."""

    token: float
    cpu: float
    first: float
    rate: float


async def bench_api(
    model: str, *, streams: Sequence[int], tokens: int, rounds: int, threads: int, report: Callable[[str], None]
) -> ApiFigures:
    """Measure every number of streams. Without speculation: each token is an event of its own."""
    engine = Engine(EngineOptions(model, slots=max(streams), context=CELLS, threads=threads, proposer="none"))
    report("starting the engine")
    await engine.start()
    try:
        vocabulary = engine.model.description.vocabulary
        prompts = [prompt_of_length(vocabulary, PROMPT_TOKENS, seed) for seed in range(max(streams))]
        async with served_engine(engine) as (host, port), line_client(CLIENT) as client:
            rows = []
            for count in streams:
                order = StreamOrder(host, port, tuple(prompts[:count]), tokens)
                rows.append(await _row(engine, client, order, rounds, report))
    finally:
        await engine.stop()
    return ApiFigures(tuple(rows), tokens, rounds, threads)


async def _row(
    engine: Engine, client: LineClient, order: StreamOrder, rounds: int, report: Callable[[str], None]
) -> ApiRow:
    report(f"{len(order.prompts)} streams: warm-up")
    await _over_http(client, order)
    await _direct(engine, order)
    api: list[_Run] = []
    direct: list[_Run] = []
    for number in range(rounds):
        report(f"{len(order.prompts)} streams: round {number + 1} of {rounds}")
        api.append(await _over_http(client, order))
        direct.append(await _direct(engine, order))
        direct.append(await _direct(engine, order))
        api.append(await _over_http(client, order))
    rates = paired([run.rate for run in api], [run.rate for run in direct])
    added = paired_differences([run.token for run in api], [run.token for run in direct])
    added_cpu = paired_differences([run.cpu for run in api], [run.cpu for run in direct])
    return ApiRow(
        streams=len(order.prompts),
        token_ms=1000 * statistics.median(run.token for run in api),
        direct_token_ms=1000 * statistics.median(run.token for run in direct),
        added_ms=1000 * statistics.median(added),
        added_cpu_ms=1000 * statistics.median(added_cpu),
        first_token_ms=1000 * statistics.median(run.first for run in api),
        direct_first_token_ms=1000 * statistics.median(run.first for run in direct),
        tokens_per_second=statistics.median(rates.a),
        direct_tokens_per_second=statistics.median(rates.b),
        throughput_ratio=rates.ratio,
        noise=rates.noise,
    )


async def _over_http(client: LineClient, order: StreamOrder) -> _Run:
    started = time.thread_time()
    times = await client.ask(order, StreamTimes)
    return _run_of(times, order.tokens, time.thread_time() - started)


async def _direct(engine: Engine, order: StreamOrder) -> _Run:
    async def follow(prompt: tuple[int, ...]) -> tuple[float, float, float]:
        asked = time.perf_counter()
        first = last = 0.0
        async for _ in engine.submit(GenerationRequest(prompt, order.tokens, ignore_eos=True)):
            last = time.perf_counter()
            first = first or last
        return asked, first, last

    started = time.thread_time()
    asked, first, last = zip(*await asyncio.gather(*map(follow, order.prompts)), strict=True)
    return _run_of(StreamTimes(asked, first, last), order.tokens, time.thread_time() - started)


def _run_of(times: StreamTimes, tokens: int, cpu: float) -> _Run:
    gaps = [(last - first) / (tokens - 1) for first, last in zip(times.first, times.last, strict=True)]
    waits = [first - asked for asked, first in zip(times.asked, times.first, strict=True)]
    seconds = max(times.last) - min(times.asked)
    made = tokens * len(gaps)
    return _Run(statistics.mean(gaps), cpu / made, statistics.median(waits), made / seconds)
