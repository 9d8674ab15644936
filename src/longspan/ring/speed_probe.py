"""How fast layers run on this machine: a few short runs of the real thing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from longspan.errors import LongspanError
from longspan.placement.node import FRAME_SECONDS
from longspan.ring.loader import StageLoader
from longspan.ring.messages import Assignment
from longspan.ring.survey_messages import Speed
from longspan.runtime.base import StageRuntime
from longspan.schedule.span import Iteration, Phase, Span

SHALLOW, DEEP = 16, 528
"""Positions that rows look back on."""

RUNS = 24
WINDOW = 8
CHUNK = 24
_WARM_UP = 3
_MOST_SECONDS = 4.0


def probe_speed(loader: StageLoader, few: int, many: int, report: Callable[[str], None]) -> Speed:
    """Measure with the first `few` and the first `many` layers of the model, and with the last `few` and the head.

    What does not grow with the layers belongs to the iteration; what the last stage takes longer is the head's.
    Called on the thread that owns this stage's runtimes. Raises LongspanError when the layers cannot be loaded.
    """
    layers = loader.layers
    many = max(1, min(many, layers - 1))
    few = max(1, min(few, many))
    report(f"measuring with {many} layers")
    with _Probe(loader, 0, many) as probe:
        whole = probe.seconds(1, SHALLOW)
        window = probe.seconds(WINDOW, SHALLOW)
        deep = probe.seconds(1, DEEP)
    position = max(0.0, deep - whole) / (DEEP - SHALLOW) / many
    report(f"measuring with {few} layers")
    if few < many:
        with _Probe(loader, 0, few) as probe:
            part = probe.seconds(1, SHALLOW)
        layer = max(0.0, whole - part) / (many - few)
        fixed = max(0.0, part - few * layer)
    else:
        layer, fixed = whole / many, 0.0
    report("measuring the output matrix")
    with _Probe(loader, layers - few, layers) as probe:
        head = probe.seconds(1, SHALLOW) - few * layer - fixed if layers > 1 else 0.0
    return Speed(
        layer_seconds=max(1e-9, layer - SHALLOW * position),
        row_seconds=max(0.0, (window - whole) / (WINDOW - 1) / many - SHALLOW * position),
        position_seconds=position,
        head_seconds=max(0.0, head),
        iteration_seconds=fixed + FRAME_SECONDS,
    )


class _Probe:
    """Some layers, and rows of noise that run through them."""

    def __init__(self, loader: StageLoader, start: int, end: int) -> None:
        assignment = Assignment(0, 1, start, end, loader.layers, None, 2, DEEP + 64, loader.dtypes[0])
        self._runtime: StageRuntime = loader.load(assignment, lambda text: None)
        self._samples = end == loader.layers
        self._noise = np.random.default_rng(0).standard_normal((max(CHUNK, WINDOW), loader.width), np.float32) * 0.1
        self._filled = 0
        self._number = 0

    def __enter__(self) -> _Probe:
        return self

    def __exit__(self, *_error: object) -> None:
        self._runtime.close()

    def seconds(self, rows: int, depth: int) -> float:
        """Seconds of an iteration of `rows` rows that look back on `depth` positions: the median of some."""
        while self._filled < depth:
            count = min(CHUNK, depth - self._filled)
            self._run(count, self._filled, Phase.PREFILL)
            self._filled += count
        began = time.perf_counter()
        found: list[float] = []
        for number in range(_WARM_UP + RUNS):
            started = time.perf_counter()
            self._run(rows, depth, Phase.DECODE if rows == 1 else Phase.VERIFY)
            finished = time.perf_counter()
            if number >= _WARM_UP:
                found.append(finished - started)
            if len(found) >= 3 and finished - began > _MOST_SECONDS:
                break
        return statistics.median(found)

    def _run(self, rows: int, start: int, phase: Phase) -> None:
        sampled = tuple(range(rows)) if self._samples and phase is not Phase.PREFILL else ()
        span = Span(1, 0, 0, start, (0,) * rows, phase, sampled)
        self._number += 1
        output = self._runtime.run(Iteration(self._number, (), (), (span,)), self._noise[:rows])
        if output.failures:
            raise LongspanError(f"the layers could not be run: {output.failures[0].reason}")
