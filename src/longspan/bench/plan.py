"""How well placing predicts: rings are formed, measured, and compared with what their stages said beforehand."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec
import uvloop

from longspan.bench.timeline import follow
from longspan.engine import Engine, EngineOptions
from longspan.errors import UsageError
from longspan.model.reference import resolve
from longspan.model.source import ModelSource
from longspan.model.splits import even_splits
from longspan.placement.demand import Demand
from longspan.placement.model_shape import ModelShape
from longspan.placement.node import COORDINATOR, Link, Network, Node
from longspan.placement.placement import Placement, describe
from longspan.request import GenerationRequest
from longspan.ring.launcher import LocalLauncher, StageHandle
from longspan.ring.model_shape import shape_of
from longspan.ring.stage_process import StageOptions
from longspan.ring.survey_client import survey_nodes

PROMPT = "A bridge is a structure that carries a road, a path or a railway over"
CONTEXT = 1024
SLOTS = 8


class RingCase(msgspec.Struct, frozen=True):
    """A ring to measure. delay_ms: one way, on every link. streams: requests that decode at once."""

    stages: int
    delay_ms: float
    streams: int = 1


CASES = (
    RingCase(1, 0.0),
    RingCase(2, 0.0),
    RingCase(3, 0.0),
    RingCase(2, 10.0),
    RingCase(3, 25.0),
)


def parse_case(text: str) -> RingCase:
    """STAGES:DELAY or STAGES:DELAY:STREAMS, such as 2:10 or 3:25:4. Raises UsageError."""
    parts = text.split(":")
    try:
        case = RingCase(int(parts[0]), float(parts[1]), *map(int, parts[2:]))
    except (ValueError, IndexError, TypeError):
        raise UsageError(f"{text!r} is no ring to measure; write STAGES:DELAY or STAGES:DELAY:STREAMS") from None
    if case.stages < 1 or not 0 <= case.delay_ms <= 60_000 or not 1 <= case.streams <= SLOTS:
        raise UsageError(f"{text!r}: at least 1 stage, 0 to 60000 ms, and 1 to {SLOTS} streams can be measured")
    return case


class PlanRow(msgspec.Struct, frozen=True):
    """One ring. predicted, actual: tokens a second of all streams together, medians over rounds.

    ratio: predicted over actual, median over rounds; noise: spread of that. memory_predicted, memory_actual: bytes
    of the stage that needs most, in its process.
    """

    stages: int
    delay_ms: float
    streams: int
    predicted: float
    actual: float
    ratio: float
    noise: float
    memory_predicted: int
    memory_actual: int


class PlanFigures(msgspec.Struct, frozen=True):
    """Results of `longspan bench plan`. worst: largest deviation of a ratio from 1."""

    rows: tuple[PlanRow, ...]
    worst: float
    model: str
    threads: int
    tokens: int
    rounds: int


def bench_plan(
    model: str,
    *,
    cases: Sequence[RingCase] = CASES,
    threads: int,
    tokens: int,
    rounds: int,
    report: Callable[[str], None],
) -> PlanFigures:
    """Measure every case, `rounds` times asked and measured in turn."""
    source = resolve(model)
    rows = []
    for case in cases:
        report(f"{case.stages} stages, {case.delay_ms:g} ms, {case.streams} streams")
        rows.append(uvloop.run(_measure(source, model, case, threads, tokens, rounds)))
    worst = max(abs(row.ratio - 1) for row in rows)
    return PlanFigures(tuple(rows), worst, source.description.model_id, threads, tokens, rounds)


async def _measure(
    source: ModelSource, model: str, case: RingCase, threads: int, tokens: int, rounds: int
) -> PlanRow:
    shape = shape_of(source)
    ranges = even_splits(source.description.layers, case.stages, source.description.cut_multiple)
    predicted: list[float] = []
    actual: list[float] = []
    async with _stages(source, model, ranges, threads) as stages:
        for _ in range(rounds):
            # The machine's speed drifts: it is asked right before it is measured.
            nodes, network = await survey_nodes([stage.address for stage in stages], shape)
            async with _engine(model, stages, case) as engine:
                prompt = tuple(engine.model.tokenizer.encode(PROMPT, add_special=True, parse_special=True))
                demand = Demand(slots=SLOTS, cells=CONTEXT, streams=case.streams, depth=len(prompt) + tokens // 2)
                placement = _placement(shape, nodes, network, case, demand, ranges)
                predicted.append(placement.prediction.plain)
                await _rate(engine, prompt, 8, case.streams)
                actual.append(await _rate(engine, prompt, tokens, case.streams))
                memory = max(stage.memory_bytes or 0 for stage in engine.ring().stages)
    ratios = [one / other for one, other in zip(predicted, actual, strict=True)]
    return PlanRow(
        stages=case.stages,
        delay_ms=case.delay_ms,
        streams=case.streams,
        predicted=statistics.median(predicted),
        actual=statistics.median(actual),
        ratio=statistics.median(ratios),
        noise=(max(ratios) - min(ratios)) / statistics.median(ratios),
        memory_predicted=max(stage.memory.total for stage in placement.stages),
        memory_actual=memory,
    )


def _placement(
    shape: ModelShape,
    nodes: Sequence[Node],
    network: Network,
    case: RingCase,
    demand: Demand,
    ranges: Sequence[tuple[int, int]],
) -> Placement:
    """The prediction for these stages with the emulated delay on every link of the ring."""
    names = [COORDINATOR, *(node.name for node in nodes), COORDINATOR]
    links: dict[tuple[str, str], Link] = {}
    for one, other in itertools.pairwise(names):
        pair = min(one, other), max(one, other)
        links[pair] = Link(network.between(one, other).seconds + case.delay_ms / 1000)
    return describe(shape, nodes, Network(network.usual, links), demand, ranges)


@contextlib.asynccontextmanager
async def _stages(
    source: ModelSource, model: str, ranges: Sequence[tuple[int, int]], threads: int
) -> AsyncIterator[list[StageHandle]]:
    launcher, stages = LocalLauncher(), list[StageHandle]()
    for start, end in ranges:
        await asyncio.to_thread(source.stage_file, start, end)
    try:
        for index in range(len(ranges)):
            stages.append(await launcher.start(index, StageOptions(model, threads=threads, mtp_head=False)))
        yield stages
    finally:
        await asyncio.gather(*(stage.stop() for stage in stages))


@contextlib.asynccontextmanager
async def _engine(model: str, stages: Sequence[StageHandle], case: RingCase) -> AsyncIterator[Engine]:
    engine = Engine(
        EngineOptions(
            model,
            ring=tuple(f"{host}:{port}" for host, port in (stage.address for stage in stages)),
            link_delay_ms=case.delay_ms,
            slots=SLOTS,
            context=CONTEXT,
            proposer="none",
        )
    )
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def _rate(engine: Engine, prompt: tuple[int, ...], tokens: int, streams: int) -> float:
    """Tokens a second of all streams together while they decode.

    Of one stream by the median of its gaps: as the probes of the stages do, it passes over moments in which a busy
    machine did something else.
    """
    requests = [GenerationRequest(prompt, tokens, ignore_eos=True, seed=0) for _ in range(streams)]
    answers = await asyncio.gather(*(follow(engine.submit(request)) for request in requests))
    if streams == 1:
        return 1 / statistics.median(answers[0].gaps())
    # From when all of them decode: a prompt that is still read holds the others up.
    first = max(answer.arrivals[0] for answer in answers)
    last = max(answer.arrivals[-1] for answer in answers)
    return sum(sum(first < at <= last for at in answer.arrivals) for answer in answers) / (last - first)
