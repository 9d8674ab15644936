"""What the ring costs: against a bare decode loop, a hop, the callback, and the memory of a part of the model."""

from __future__ import annotations

import asyncio
import secrets
import statistics
import time
from collections.abc import Callable

import msgspec
import numpy as np
import psutil
import uvloop

from longspan.bench.bare import BareLoop
from longspan.bench.paired import Paired, abba, paired, paired_differences
from longspan.engine import Engine, EngineOptions
from longspan.errors import RingError
from longspan.llamacpp.library import load_library
from longspan.model.architecture import find_architecture
from longspan.model.reference import resolve
from longspan.model.source import ModelSource
from longspan.model.splits import even_splits
from longspan.request import GenerationRequest
from longspan.ring.driver import RingDriver
from longspan.ring.launcher import LocalLauncher
from longspan.ring.llama_loader import LlamaLoader
from longspan.ring.ring_plan import RingPlan, StagePlace
from longspan.ring.stage_process import StageOptions
from longspan.runtime.llama.context import LlamaContext
from longspan.runtime.llama.graph_tap import GraphTap
from longspan.schedule.span import Iteration, IterationResult, Phase, Span

PROMPT = "A bridge is a structure that carries a road, a path or a railway over"
CONTEXT = 1024
SLOTS = 8


class RingFigures(msgspec.Struct, frozen=True):
    """Results of `longspan bench ring`.

    decode_ratio_to_bare: tokens a second of our one-stage engine over those of a bare `llama_decode` loop.
    hop_overhead_ms: median time of a one-row frame outside of compute, divided by the links that it crosses.
    callback_overhead_ms: extra time of one row through half of the layers when the residual is read out; median
        over rounds.
    stage_memory_ratio: resident memory of the larger of two half-model stage processes over the whole model's.
    Each noise is relative: the spread of repeated measurements of one arm.
    """

    decode_ratio_to_bare: float
    decode_noise: float
    engine_tokens_per_second: float
    bare_tokens_per_second: float
    hop_overhead_ms: float
    hop_noise: float
    hop_p95_ms: float
    callback_overhead_ms: float
    callback_noise: float
    callback_layers: int
    stage_memory_ratio: float
    stage_memory_mib: float
    whole_memory_mib: float
    threads: int


def bench_ring(model: str, *, threads: int, rounds: int, report: Callable[[str], None]) -> RingFigures:
    """Measure everything, one after the other."""
    source = resolve(model)
    report("decoding against a bare loop")
    decode = _decode(source, model, threads, rounds)
    report("reading the residual")
    layers = max(1, source.description.layers // 2)
    with_callback, without = _callback(source, layers, threads, rounds)
    report("a hop over loopback")
    hops = uvloop.run(_hops(source, model, threads, rounds))
    report("memory of stages")
    whole, half = uvloop.run(_memory(source, model, threads))
    medians = [statistics.median(part) for part in hops]
    return RingFigures(
        decode_ratio_to_bare=decode.ratio,
        decode_noise=decode.noise,
        engine_tokens_per_second=statistics.median(decode.a),
        bare_tokens_per_second=statistics.median(decode.b),
        hop_overhead_ms=1000 * statistics.median(medians),
        hop_noise=(max(medians) - min(medians)) / statistics.median(medians),
        hop_p95_ms=1000 * float(np.percentile([value for part in hops for value in part], 95)),
        callback_overhead_ms=1000 * statistics.median(paired_differences(with_callback, without)),
        callback_noise=paired(with_callback, without).noise,
        callback_layers=layers,
        stage_memory_ratio=half / whole,
        stage_memory_mib=half / (1 << 20),
        whole_memory_mib=whole / (1 << 20),
        threads=threads,
    )


def _decode(source: ModelSource, model: str, threads: int, rounds: int, tokens: int = 32) -> Paired:
    """Tokens a second of both arms. Many short runs: a shared machine changes its speed within seconds."""
    loop = asyncio.new_event_loop()
    engine = Engine(EngineOptions(model, threads=threads, slots=SLOTS, context=CONTEXT, proposer="none"))
    try:
        loop.run_until_complete(engine.start())
        prompt = tuple(engine.model.tokenizer.encode(PROMPT, add_special=True, parse_special=True))
        bare = BareLoop(load_library(), source.vocabulary_file(), threads=threads, cells=CONTEXT)

        async def generate() -> float:
            stream = engine.submit(GenerationRequest(prompt, tokens, ignore_eos=True))
            async for _ in stream:
                pass
            assert stream.timings is not None
            return stream.timings.tokens_per_second

        try:
            loop.run_until_complete(generate())
            bare.generate(prompt, tokens)
            return abba(
                lambda: loop.run_until_complete(generate()),
                lambda: bare.generate(prompt, tokens).per_second,
                4 * rounds,
            )
        finally:
            bare.close()
    finally:
        loop.run_until_complete(engine.stop())
        loop.close()


def _callback(source: ModelSource, layers: int, threads: int, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of a one-row call with and without the residual reader: medians of short runs, A B B A."""
    library = load_library()
    path = source.stage_file(0, layers)
    width = source.description.width
    name = f"{find_architecture(source.description.architecture).residual}-{layers - 1}"
    tap = GraphTap(library, name, width, 64)
    contexts = [
        LlamaContext(
            library, path, slots=1, cells=CONTEXT, threads=threads, max_rows=64, max_outputs=64, callback=callback
        )
        for callback in (tap.callback, None)
    ]
    row = np.random.default_rng(0).standard_normal((1, width)).astype(np.float32)
    zero = np.zeros(1, np.int32)

    def measure(context: LlamaContext, tap: GraphTap | None) -> float:
        context.trim(0, 0)
        seconds: list[float] = []
        for position in range(96):
            started = time.perf_counter()
            if tap is not None:
                tap.prepare(row, 1)
            failure = context.decode(row, np.array([position], np.int32), zero, None)
            if failure or (tap is not None and not tap.finish(1, 1)):
                raise RingError(f"the stage could not run: {failure or 'no residual'}")
            seconds.append(time.perf_counter() - started)
        return statistics.median(seconds[16:])

    try:
        measure(contexts[0], tap), measure(contexts[1], None)
        found = abba(lambda: measure(contexts[0], tap), lambda: measure(contexts[1], None), 2 * rounds)
    finally:
        for context in contexts:
            context.close()
    return list(found.a), list(found.b)


class _Ring:
    """A ring of local stage processes that is driven by hand."""

    def __init__(self, source: ModelSource, model: str, threads: int, stages: int) -> None:
        self._source = source
        self._options = StageOptions(model, threads=threads, mtp_head=False)
        self._ranges = even_splits(source.description.layers, stages, source.description.cut_multiple)
        self._results: asyncio.Queue[tuple[float, IterationResult | RingError]] = asyncio.Queue()
        self._embedding = source.token_embedding()
        self._number = 0

    async def __aenter__(self) -> _Ring:
        launcher = LocalLauncher()
        for span in self._ranges:
            await asyncio.to_thread(self._source.stage_file, *span)
        self.stages = [await launcher.start(index, self._options) for index in range(len(self._ranges))]
        places = tuple(
            StagePlace(index, start, end, stage.address)
            for index, ((start, end), stage) in enumerate(zip(self._ranges, self.stages, strict=True))
        )
        self._driver = RingDriver(
            RingPlan(secrets.token_hex(8), places, SLOTS, CONTEXT, "float32", 0.0),
            LlamaLoader(self._source, threads=1, mtp_head=False),
            on_result=self._arrived,
            on_room=lambda: None,
            on_failure=self._arrived,
            on_progress=lambda _: None,
        )
        await self._driver.form()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._driver.close()
        await asyncio.gather(*(stage.stop() for stage in self.stages))

    def _arrived(self, result: IterationResult | RingError) -> None:
        self._results.put_nowait((time.perf_counter(), result))

    async def row(self, position: int, token: int) -> tuple[int, float, float]:
        """Run one row: the sampled token, seconds in all, seconds of compute over all stages."""
        span = Span(0, 0, 0, position, (token,), Phase.DECODE, (0,))
        activations = self._embedding.rows(np.array([token], np.int32))
        started = time.perf_counter()
        self._driver.send(Iteration(self._number, (), (), (span,)), activations)
        self._number += 1
        arrived, result = await self._results.get()
        seconds = arrived - started
        if isinstance(result, RingError):
            raise result
        compute = sum(timing.finished - timing.started for timing in result.timings)
        return result.samples[0].token, seconds, compute


async def _hops(source: ModelSource, model: str, threads: int, rounds: int) -> list[list[float]]:
    """Seconds a hop of every frame, in rounds, over two stages and so three links."""
    async with _Ring(source, model, threads, 2) as ring:
        token = 1
        found: list[list[float]] = []
        for _ in range(max(2, rounds)):
            part: list[float] = []
            for position in range(160):
                token, seconds, compute = await ring.row(position, token)
                part.append((seconds - compute) / 3)
            found.append(part[32:])
        return found


async def _memory(source: ModelSource, model: str, threads: int) -> tuple[float, float]:
    """Resident bytes of a process with the whole model, and of the larger of two with half of it."""
    found: list[float] = []
    for stages in (1, 2):
        async with _Ring(source, model, threads, stages) as ring:
            token = 1
            for position in range(32):
                token, _, _ = await ring.row(position, token)
            found.append(max(psutil.Process(stage.pid).memory_info().rss for stage in ring.stages))
    return found[0], found[1]
