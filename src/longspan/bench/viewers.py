"""What people who look at the dashboard cost those who ask: the same requests with and without them, A B B A."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import msgspec

from longspan.bench.line_client import LineClient, line_client
from longspan.bench.paired import paired
from longspan.bench.prompts import prompt_of_length
from longspan.bench.served_engine import served_engine
from longspan.bench.stream_client import StreamOrder, StreamTimes
from longspan.bench.viewer_client import FramesSeen, ViewerOrder
from longspan.engine import Engine, EngineOptions

ASKING = "longspan.bench.stream_client"
VIEWING = "longspan.bench.viewer_client"
PROMPT_TOKENS = 16


class ViewersFigures(msgspec.Struct, frozen=True):
    """Results of `longspan bench viewers`.

    tokens_per_second: with viewers, alone_tokens_per_second: without; medians over all passes. ratio: with over
    without, median over rounds. noise: relative difference of the two passes of an arm in a round, median.
    frames: that the viewers got in all measured passes together.
    """

    viewers: int
    streams: int
    tokens_per_second: float
    alone_tokens_per_second: float
    ratio: float
    noise: float
    frames: int
    tokens: int
    rounds: int
    stages: int
    threads: int
    model: str


class ViewersPlan(msgspec.Struct, frozen=True):
    """What to measure. tokens: of each stream."""

    model: str
    viewers: int
    streams: int
    tokens: int
    rounds: int
    stages: int
    threads: int


async def bench_viewers(plan: ViewersPlan, report: Callable[[str], None]) -> ViewersFigures:
    """Measure. Viewers and the client that asks are processes of their own. Raises LongspanError."""
    options = EngineOptions(
        plan.model,
        stages=plan.stages,
        threads=plan.threads,
        slots=plan.streams,
        context=PROMPT_TOKENS + plan.tokens + 1,
        proposer="none",
    )
    engine = Engine(options)
    report("starting the engine")
    await engine.start()
    try:
        known = engine.model.description
        prompts = tuple(prompt_of_length(known.vocabulary, PROMPT_TOKENS, seed) for seed in range(plan.streams))
        async with (
            served_engine(engine) as (host, port),
            line_client(ASKING) as asking,
            line_client(VIEWING) as viewing,
        ):
            order = StreamOrder(host, port, prompts, plan.tokens)
            with_viewers, alone, frames = await _passes(plan, order, asking, viewing, report)
    finally:
        await engine.stop()
    found = paired(with_viewers, alone)
    return ViewersFigures(
        viewers=plan.viewers,
        streams=plan.streams,
        tokens_per_second=statistics.median(with_viewers),
        alone_tokens_per_second=statistics.median(alone),
        ratio=found.ratio,
        noise=found.noise,
        frames=frames,
        tokens=plan.tokens,
        rounds=plan.rounds,
        stages=plan.stages,
        threads=plan.threads,
        model=known.model_id,
    )


async def _passes(
    plan: ViewersPlan, order: StreamOrder, asking: LineClient, viewing: LineClient, report: Callable[[str], None]
) -> tuple[list[float], list[float], int]:
    """Tokens a second of every pass with viewers and of every pass without, and the frames seen."""
    frames = 0

    async def one(viewers: int) -> float:
        nonlocal frames
        await viewing.ask(ViewerOrder(order.host, order.port, viewers), FramesSeen)
        times = await asking.ask(order, StreamTimes)
        seen = await viewing.ask(ViewerOrder(order.host, order.port, 0), FramesSeen)
        frames += seen.frames
        return order.tokens * len(order.prompts) / (max(times.last) - min(times.asked))

    report("warm-up")
    await one(plan.viewers)
    await one(0)
    frames = 0
    found: dict[bool, list[float]] = {True: [], False: []}
    for number in range(plan.rounds):
        report(f"round {number + 1} of {plan.rounds}")
        for watched in (True, False, False, True):
            found[watched].append(await one(plan.viewers if watched else 0))
    return found[True], found[False], frames
