"""Certifies that a split model computes what the whole model computes, bit for bit.

The truth is the whole model, one row at a time. Against it stand the split model's rows in every composition that
serving makes: windows of every size below the exact-row limit, windows beside another sequence's prefill, random
trims, and several interleaved sequences.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from longspan.model.source import ModelSource
from longspan.ring.llama_loader import LlamaLoader
from longspan.ring.messages import Assignment, decode, encode_iteration
from longspan.ring.stage_compute import StageCompute
from longspan.runtime.base import Capacity, StageRuntime
from longspan.sampling.parameters import SamplingParameters
from longspan.schedule.span import Iteration, IterationResult, Phase, Span, TokenLogprob

SEQUENCES = 4
MOST_SIZES = 96
"""Window sizes that are tried when the limit is larger than that."""

Logits = npt.NDArray[np.float32]


class Check(msgspec.Struct, frozen=True):
    """One composition of batches. differing: rows whose logits are not bit-identical to the truth."""

    name: str
    rows: int
    differing: int
    max_abs_difference: float


class Certificate(msgspec.Struct, frozen=True):
    """What was compared and what came out. exact: that every row of every check is bit-identical."""

    exact: bool
    max_abs_difference: float
    exact_rows: int
    rows_checked: int
    model: str
    digest: str
    architecture: str
    stages: tuple[tuple[int, int], ...]
    activation_dtype: str
    threads: int
    checks: tuple[Check, ...]
    seconds: float


class _Recorder:
    """A sampler that keeps the logits and answers greedily."""

    def __init__(self) -> None:
        self.rows: list[Logits] = []

    def __call__(
        self, logits: Logits, _parameters: SamplingParameters, _position: int, _history: Sequence[int]
    ) -> tuple[int, TokenLogprob | None]:
        self.rows.append(logits.copy())
        return int(logits.argmax()), None


class _Chain:
    """Stages in one process, with real frames between them."""

    def __init__(
        self,
        source: ModelSource,
        ranges: Sequence[tuple[int, int]],
        cells: int,
        threads: int,
        dtype: str,
        library: str | None,
    ) -> None:
        self._recorder = _Recorder()
        self._embedding = source.token_embedding(library)
        loader = LlamaLoader(source, threads=threads, library=library, sampler=self._recorder, mtp_head=False)
        self._dtype = dtype
        self._iterations = 0
        self.runtimes: list[StageRuntime] = []
        for index, (start, end) in enumerate(ranges):
            assignment = Assignment(index, len(ranges), start, end, loader.layers, None, SEQUENCES, cells, dtype)
            self.runtimes.append(loader.load(assignment, lambda _: None))
        self._stages = [
            StageCompute(runtime, index, loader.width, dtype) for index, runtime in enumerate(self.runtimes)
        ]

    @property
    def capacity(self) -> Capacity:
        """The smallest of all stages."""
        found = [runtime.capacity() for runtime in self.runtimes]
        return dataclasses.replace(
            found[0],
            exact_rows=min(capacity.exact_rows for capacity in found),
            max_rows=min(capacity.max_rows for capacity in found),
        )

    def run(self, spans: Sequence[tuple[int, int, Sequence[int]]]) -> list[Logits]:
        """Logits of every row of the spans (slot, start, tokens), in their order."""
        ordered = tuple(
            Span(slot, slot, 0, start, tuple(tokens), Phase.VERIFY, tuple(range(len(tokens))))
            for slot, start, tokens in sorted(spans)
        )
        iteration = Iteration(self._iterations, (), (), ordered)
        self._iterations += 1
        self._recorder.rows.clear()
        embedded = self._embedding.rows(np.array(iteration.tokens, np.int32))
        frame = encode_iteration(iteration, embedded, self._dtype)
        for stage in self._stages:
            frame = stage.run_frame(frame, 0.0)
        result = decode(frame, IterationResult)
        if result.failures:
            raise AssertionError(f"a stage could not run a certified batch: {result.failures[0].reason}")
        return list(self._recorder.rows)

    def close(self) -> None:
        for runtime in self.runtimes:
            runtime.close()


class _Tally:
    """Compares rows with the truth."""

    def __init__(self, truth: list[list[Logits]]) -> None:
        self._truth = truth
        self.rows = 0
        self.differing = 0
        self.largest = 0.0

    def compare(self, spans: Sequence[tuple[int, int, Sequence[int]]], rows: list[Logits]) -> None:
        """Enter rows that were computed for spans (slot, start, tokens)."""
        expected = [
            self._truth[slot][start + row] for slot, start, tokens in sorted(spans) for row in range(len(tokens))
        ]
        for found, wanted in zip(rows, expected, strict=True):
            self.rows += 1
            if not np.array_equal(found, wanted):
                self.differing += 1
                self.largest = max(self.largest, float(np.abs(found - wanted).max()))

    def check(self, name: str) -> Check:
        """The result so far under a name; starts afresh."""
        check = Check(name, self.rows, self.differing, self.largest)
        self.rows, self.differing, self.largest = 0, 0, 0.0
        return check


def certify(
    source: ModelSource,
    ranges: Sequence[tuple[int, int]],
    *,
    threads: int = 1,
    dtype: str = "float32",
    library: str | None = None,
    seed: int = 0,
    report: Callable[[str, float], None] = lambda text, share: None,
) -> Certificate:
    """Compare the model split at `ranges` with the whole model.

    report: takes what is being done and the share that is done. Raises LongspanError when the model cannot be run.
    """
    started = time.perf_counter()
    generator = np.random.default_rng(seed)
    description = source.description
    length = min(112, description.context_length)
    whole = _Chain(source, [(0, description.layers)], length, threads, "float32", library)
    tokens = [
        [int(token) for token in generator.integers(0, description.vocabulary, length)] for _ in range(SEQUENCES)
    ]
    try:
        truth: list[list[Logits]] = [[] for _ in range(SEQUENCES)]
        for position in range(length):
            report("the whole model, one row at a time", position / length)
            for slot in range(SEQUENCES):
                truth[slot] += whole.run([(slot, position, tokens[slot][position : position + 1])])
        limit = whole.capacity.exact_rows
    finally:
        whole.close()
    split = _Chain(source, ranges, length, threads, dtype, library)
    try:
        limit = min(limit, split.capacity.exact_rows, split.capacity.max_rows + 1, length + 1)
        checks = tuple(_checks(split, tokens, truth, limit, generator, report))
    finally:
        split.close()
    return Certificate(
        exact=all(check.differing == 0 for check in checks),
        max_abs_difference=max(check.max_abs_difference for check in checks),
        exact_rows=limit,
        rows_checked=sum(check.rows for check in checks),
        model=description.model_id,
        digest=source.digest,
        architecture=description.architecture,
        stages=tuple(ranges),
        activation_dtype=dtype,
        threads=threads,
        checks=checks,
        seconds=time.perf_counter() - started,
    )


def _checks(
    chain: _Chain,
    tokens: list[list[int]],
    truth: list[list[Logits]],
    limit: int,
    generator: np.random.Generator,
    report: Callable[[str, float], None],
) -> Iterator[Check]:
    tally = _Tally(truth)
    length = len(tokens[0])

    def run(*spans: tuple[int, int, Sequence[int]]) -> None:
        tally.compare(spans, chain.run(spans))

    for position in range(length):
        report("the split model, one row at a time", position / length)
        run((0, position, tokens[0][position : position + 1]))
    yield tally.check("one row at a time")

    sizes = sorted({int(size) for size in np.linspace(2, limit - 1, min(MOST_SIZES, max(0, limit - 2)))})
    for count, size in enumerate(sizes):
        report("windows of every size, after random trims", count / len(sizes))
        start = int(generator.integers(0, length - size + 1))
        run((0, start, tokens[0][start : start + size]))
        _refill(chain, tokens, 0, start + size, limit)
    yield tally.check(f"windows of 2 to {limit - 1} rows, random trims")

    held = [length] + [0] * (SEQUENCES - 1)
    step = 0
    while any(count < length for count in held[1:]) or step < 48:
        report("four interleaved sequences beside prefill", min(0.99, sum(held) / (SEQUENCES * length)))
        step += 1
        spans = _random_spans(tokens, held, limit - 1, generator)
        run(*spans)
        for slot, start, part in spans:
            held[slot] = start + len(part)
    yield tally.check("interleaved sequences, windows beside prefill, random trims")


def _refill(chain: _Chain, tokens: list[list[int]], slot: int, start: int, limit: int) -> None:
    """Fill a slot up again after a trim, in pieces below the limit."""
    length = len(tokens[slot])
    while start < length:
        end = min(length, start + limit - 1)
        chain.run([(slot, start, tokens[slot][start:end])])
        start = end


def _random_spans(
    tokens: list[list[int]], held: list[int], room: int, generator: np.random.Generator
) -> list[tuple[int, int, Sequence[int]]]:
    """Windows of up to 8 rows on some slots, trimmed back at random, and a longer prefill on one."""
    length = len(tokens[0])
    chosen = [slot for slot in range(SEQUENCES) if generator.random() < 0.75] or [0]
    prefilling = int(generator.choice(chosen))
    spans: list[tuple[int, int, Sequence[int]]] = []
    for slot in chosen:
        back = int(generator.integers(0, 6)) if generator.random() < 0.5 else 0
        start = max(0, min(held[slot], length - 1) - back)
        most = 48 if slot == prefilling else 8
        rows = min(int(generator.integers(1, most + 1)), length - start, room)
        if rows > 0:
            spans.append((slot, start, tokens[slot][start : start + rows]))
            room -= rows
    return spans
