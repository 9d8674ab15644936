"""The stage runtime over llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from longspan.errors import LongspanError, ProtocolError
from longspan.llamacpp.library import Library
from longspan.runtime.base import Activations, Capacity, StageOutput, StageRuntime
from longspan.runtime.llama import note
from longspan.runtime.llama.context import LlamaContext
from longspan.runtime.llama.exactness import ExactnessProbe
from longspan.runtime.llama.residual import ResidualReader
from longspan.runtime.slots import KvCopy, KvTrim, SlotBook, SlotPlan
from longspan.sampling.adjustment import Logits
from longspan.sampling.parameters import SamplingParameters
from longspan.sampling.sampler import sample
from longspan.schedule.span import Iteration, Sample, Span, SpanFailure, TokenLogprob
from longspan.schedule.sub_batches import sub_batches

DEFAULT_MAX_ROWS = 512
MAX_SAMPLES = 128
"""Most rows that one iteration may sample: each needs a row of logits as wide as the vocabulary."""


Sampler = Callable[[Logits, SamplingParameters, int, Sequence[int]], tuple[int, TokenLogprob | None]]
"""(logits, parameters, position of the sampled token, tokens before it) → token; see `sampling.sampler.sample`."""


class LlamaRuntime(StageRuntime):
    """Runs a stage file whose blocks are numbered from 0.

    last: whether the file ends with the output head, so that this stage samples.
    layers: blocks in the file. residual: name of the residual tensor without the layer's number.
    exact_rows: see `Capacity`; measured when None (see `exactness`), and remembered.
    sampler: turns a row of logits into a token; whoever wants to look at logits hands in his own.
    """

    def __init__(
        self,
        library: Library,
        path: Path,
        *,
        layers: int,
        last: bool,
        slots: int,
        cells_per_slot: int,
        threads: int,
        residual: str = "l_out",
        max_rows: int = DEFAULT_MAX_ROWS,
        exact_rows: int | None = None,
        sampler: Sampler = sample,
        width: int,
    ) -> None:
        self._last = last
        self._sampler = sampler
        self._reader = None if last else ResidualReader(library, f"{residual}-{layers - 1}", width, max_rows)
        # Every row of a stage that is not the last is an output, or llama.cpp prunes it before the residual.
        outputs = min(max_rows, max(slots, MAX_SAMPLES)) if last else max_rows
        self._max_samples = outputs
        self._context = LlamaContext(
            library,
            path,
            slots=slots,
            cells=cells_per_slot,
            threads=threads,
            max_rows=max_rows,
            max_outputs=outputs,
            callback=self._reader.callback if self._reader else None,
        )
        if exact_rows is None:
            exact_rows = note.recall(library.path, path, threads, max_rows)
        if exact_rows is None:
            exact_rows = ExactnessProbe(self._context, self._reader, max_rows).find()
            note.remember(library.path, path, threads, max_rows, exact_rows)
        self._capacity = Capacity(slots, self._context.cells, max_rows, exact_rows)
        self._book = SlotBook(self._capacity)

    def capacity(self) -> Capacity:
        """What this runtime can hold."""
        return self._capacity

    def close(self) -> None:
        """Release model and context."""
        self._context.close()

    def run(
        self, iteration: Iteration, activations: Activations, failed: frozenset[int] = frozenset()
    ) -> StageOutput:
        """Run one iteration; see `StageRuntime.run`."""
        wanted = sum(len(span.sample_rows) for span in iteration.spans)
        if self._last and wanted > self._max_samples:
            raise ProtocolError(
                f"{wanted} rows to sample in one iteration, at most {self._max_samples} are allowed"
            )
        plan = self._book.begin(iteration, failed)
        for action in plan.actions:
            self._act(action)
        if not plan.runnable:
            empty = None if self._last else np.zeros((iteration.rows, self._context.width), np.float32)
            return StageOutput(empty, (), plan.failures, 0)
        rows = _RowBatch(plan, iteration.rows, self._max_samples if self._last else 0)
        inputs = np.ascontiguousarray(activations if rows.all_rows else activations[rows.selected])
        failure = self._decode(rows, inputs)
        if failure:
            for _, _, span in plan.runnable:
                self._act(self._book.undo(span))
            failures = tuple(SpanFailure(index, failure) for index, _, _ in plan.runnable)
            empty = None if self._last else np.zeros((iteration.rows, self._context.width), np.float32)
            return StageOutput(empty, (), plan.failures + failures, len(rows.parts))
        if self._reader is None:
            samples, failures = self._sample(plan)
            return StageOutput(None, samples, plan.failures + failures, len(rows.parts))
        residual = rows.restore(self._reader.buffer[: rows.count], iteration.rows)
        return StageOutput(residual, (), plan.failures, len(rows.parts), self._reader.seconds)

    def _act(self, action: KvTrim | KvCopy) -> None:
        if isinstance(action, KvTrim):
            self._context.trim(action.slot, action.keep)
        else:
            self._context.copy(action.source, action.target, action.length)

    def _decode(self, rows: _RowBatch, inputs: Activations) -> str:
        if self._reader is None:
            return self._context.decode(inputs, rows.positions, rows.slots, rows.outputs)
        self._reader.prepare()
        failure = self._context.decode(inputs, rows.positions, rows.slots, None)
        if failure or self._reader.finish(rows.count, len(rows.parts)):
            return failure
        # The graph was not the one that was learned: run the same rows again, this time looking at names.
        for span in rows.spans:
            self._context.trim(span.slot, span.start)
        self._reader.prepare()
        failure = self._context.decode(inputs, rows.positions, rows.slots, None)
        if failure or self._reader.finish(rows.count, len(rows.parts)):
            return failure
        return "llama.cpp did not compute the residual tensor of this stage's last layer"

    def _sample(self, plan: SlotPlan) -> tuple[tuple[Sample, ...], tuple[SpanFailure, ...]]:
        samples: list[Sample] = []
        failures: list[SpanFailure] = []
        batch_row = 0
        for index, _, span in plan.runnable:
            parameters = self._book.sampling[span.slot]
            for row in span.sample_rows:
                logits = self._context.logits(batch_row + row)
                position = _position(span, row) + 1
                try:
                    token, logprob = self._sampler(logits, parameters, position, self._book.history(span, row))
                except LongspanError as error:
                    failures.append(SpanFailure(index, str(error)))
                    break
                samples.append(Sample(index, row, token, logprob))
            batch_row += len(span.tokens)
        return tuple(samples), tuple(failures)


def _position(span: Span, row: int) -> int:
    """Position of a row: along a chain its index, in a tree its depth."""
    if span.parents is None:
        return span.start + row
    depth, node = 0, span.parents[row]
    while node >= 0:
        depth, node = depth + 1, span.parents[node]
    return span.start + depth


class _RowBatch:
    """The runnable spans of an iteration as arrays.

    positions, slots, outputs: (count,). parts: rows of each sub-batch, in order. selected: rows of the iteration's
    activations that are run; all_rows: that these are all of them, in order.
    """

    def __init__(self, plan: SlotPlan, iteration_rows: int, max_samples: int) -> None:
        self.spans = [span for _, _, span in plan.runnable]
        counts = [len(span.tokens) for span in self.spans]
        self.count = sum(counts)
        self.all_rows = self.count == iteration_rows
        self.slots = np.repeat(np.array([span.slot for span in self.spans], np.int32), counts)
        self.positions = np.concatenate([_positions(span) for span in self.spans])
        firsts = np.cumsum([0, *counts[:-1]])
        self.selected: npt.NDArray[np.intp] = np.concatenate(
            [np.arange(first, first + count) for (_, first, _), count in zip(plan.runnable, counts, strict=True)]
        )
        self.outputs: npt.NDArray[np.int8] = np.zeros(self.count, np.int8)
        if max_samples:
            for span, first in zip(self.spans, firsts, strict=True):
                self.outputs[[first + row for row in span.sample_rows]] = 1
        batches = sub_batches([(span.slot, count) for span, count in zip(self.spans, counts, strict=True)], 1 << 30)
        self.parts = [sum(rows for _, _, rows in batch) for batch in batches]
        self._order: npt.NDArray[np.intp] | None = None
        if len(self.spans) > 1:
            self._order = np.concatenate(
                [
                    np.arange(firsts[index] + row, firsts[index] + row + rows)
                    for batch in batches
                    for index, row, rows in batch
                ]
            )

    def restore(self, computed: Activations, iteration_rows: int) -> Activations:
        """Rows in the order of the iteration, zeros where a span did not run; a fresh array."""
        width = computed.shape[1]
        if self.all_rows and self._order is None:
            return computed.copy()
        result = np.zeros((iteration_rows, width), np.float32)
        result[self.selected if self._order is None else self.selected[self._order]] = computed
        return result


def _positions(span: Span) -> npt.NDArray[np.int32]:
    if span.parents is None:
        return np.arange(span.start, span.start + len(span.tokens), dtype=np.int32)
    return np.array([_position(span, row) for row in range(len(span.tokens))], np.int32)
