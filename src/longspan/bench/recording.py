"""Records how long iterations really take: a contended, ragged workload, and repeats of one shape."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from longspan.bench.prompts import prompt_of_length
from longspan.bench.timeline import follow
from longspan.engine import Engine, EngineOptions
from longspan.model.source import ModelSource
from longspan.request import GenerationRequest
from longspan.ring.llama_loader import LlamaLoader
from longspan.ring.messages import Assignment
from longspan.runtime.base import StageRuntime
from longspan.schedule.span import Iteration, Phase, Span

LONGEST_HISTORY = 6000
REPEATS = 24
_SHAPES: tuple[tuple[tuple[int, int], ...], ...] = (
    ((64, 1),),
    ((512, 1), (96, 1), (1500, 1), (300, 1)),
    ((40, 1), (200, 1), (900, 1), (100, 1), (60, 1), (350, 1), (1200, 1), (20, 1)),
    ((512, 48),),
    ((256, 1), (800, 1), (128, 32)),
)
"""Iterations as (history, rows) by slot, whose repeats show the machine's own noise."""


class NoiseFloor(msgspec.Struct, frozen=True):
    """Relative deviation of repeats of a shape from their median: the error that no model can go below."""

    mean_relative_error: float
    p95_relative_error: float


async def record(
    model: str, trace: Path, *, requests: int, threads: int | None, seed: int, report: Callable[[str], None]
) -> None:
    """Run the workload with a trace file: prompts of 16 to 6,000 tokens arrive at random beside decoding streams."""
    generator = np.random.default_rng(seed)
    engine = Engine(EngineOptions(model, threads=threads, slots=8, context=LONGEST_HISTORY + 512, trace=str(trace)))
    try:
        await engine.start()
        vocabulary = engine.model.description.vocabulary
        done = 0

        async def one(number: int, length: int, tokens: int) -> None:
            nonlocal done
            prompt = prompt_of_length(vocabulary, length, seed + number)
            await follow(
                engine.submit(
                    GenerationRequest(prompt, tokens, ignore_eos=True, seed=number, cache_salt=f"{seed}/{number}")
                )
            )
            done += 1
            report(f"recording: {done} of {requests} requests")

        running = []
        for number in range(requests):
            # Lengths are spread evenly over their logarithm, with one prompt of the greatest length in the middle.
            length = LONGEST_HISTORY if number == requests // 2 else int(16 * 2 ** generator.uniform(0, 7))
            running.append(asyncio.ensure_future(one(number, length, int(generator.integers(24, 96)))))
            await asyncio.sleep(float(generator.exponential(1.0)))
        await asyncio.gather(*running)
    finally:
        await engine.stop()


def noise_floor(source: ModelSource, threads: int, report: Callable[[str], None]) -> NoiseFloor:
    """Run a few shapes again and again on the whole model, and look how far apart their times are."""
    report("measuring the machine's own noise")
    layers = source.description.layers
    loader = LlamaLoader(source, threads=threads)
    runtime = loader.load(Assignment(0, 1, 0, layers, layers, None, 8, 2048, "float32"), lambda _: None)
    try:
        deviations: list[float] = []
        for shape in _SHAPES:
            seconds = _repeat(runtime, loader.width, shape)
            median = statistics.median(seconds)
            deviations += [abs(value - median) / median for value in seconds]
    finally:
        runtime.close()
    return NoiseFloor(statistics.fmean(deviations), float(np.percentile(deviations, 95)))


def _repeat(runtime: StageRuntime, width: int, shape: tuple[tuple[int, int], ...]) -> list[float]:
    """Seconds of each repeat of a shape; the spans start at the same positions every time."""
    for slot, (history, _) in enumerate(shape):
        for start in range(0, history, 48):
            _run(runtime, width, (Span(slot, slot, 0, start, (1,) * min(48, history - start), Phase.PREFILL),))
    spans = tuple(
        Span(slot, slot, 0, history, (1,) * rows, Phase.DECODE if rows == 1 else Phase.PREFILL, (rows - 1,))
        for slot, (history, rows) in enumerate(shape)
    )
    _run(runtime, width, spans)
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        _run(runtime, width, spans)
        seconds.append(time.perf_counter() - started)
    return seconds


def _run(runtime: StageRuntime, width: int, spans: tuple[Span, ...]) -> None:
    rows = sum(len(span.tokens) for span in spans)
    activations = np.random.default_rng(0).standard_normal((rows, width)).astype(np.float32)
    output = runtime.run(Iteration(0, (), (), spans), activations)
    if output.failures:
        raise RuntimeError(output.failures[0].reason)
