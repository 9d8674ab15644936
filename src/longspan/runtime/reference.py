"""The numpy stage: the contract of `StageRuntime` in its plainest form, to check the others against."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from longspan.errors import ProtocolError
from longspan.runtime.base import Activations, Capacity, StageOutput, StageRuntime
from longspan.runtime.reference_model import ReferenceModel, Vector
from longspan.runtime.slots import KvCopy, KvTrim, SlotBook
from longspan.sampling.adjustment import needs_history
from longspan.sampling.sampler import SamplingError, sample, score
from longspan.schedule.span import Iteration, Sample, Span, SpanFailure, TokenLogprob


class ReferenceRuntime(StageRuntime):
    """A stage of the architecture `llama` in numpy float32; the last stage when the file has an output matrix.

    A row's result depends on the tokens before it and on nothing else, to the bit: batches, trims, copies and tree
    branches leave no trace. Chains and token trees both run.
    """

    def __init__(
        self, path: Path, *, slots: int, cells_per_slot: int, max_rows: int = 512, poison: bool = False
    ) -> None:
        """Load the stage file at `path`.

        poison: fill every cell that holds no position of its slot with NaN, so that reading one shows.
        Raises ModelError when the file is not a model that `ReferenceModel` runs.
        """
        self._model = ReferenceModel(path, cells_per_slot)
        # No batch size changes a row, so none is refused: a mixed iteration may have every row there is.
        self._capacity = Capacity(slots, cells_per_slot, max_rows, exact_rows=max_rows + 1)
        self._book = SlotBook(self._capacity)
        self._empty = np.float32(np.nan if poison else 0.0)
        model = self._model
        shape = (slots, model.layers, model.key_value_heads, cells_per_slot, model.head_width)
        self._keys = np.full(shape, self._empty, np.float32)
        self._values = np.full(shape, self._empty, np.float32)

    def capacity(self) -> Capacity:
        return self._capacity

    def close(self) -> None:
        """Nothing is held but arrays."""

    def run(
        self, iteration: Iteration, activations: Activations, failed: frozenset[int] = frozenset()
    ) -> StageOutput:
        if activations.shape != (iteration.rows, self._model.width):
            raise ProtocolError(
                f"activations of shape {activations.shape}, expected ({iteration.rows}, {self._model.width})"
            )
        plan = self._book.begin(iteration, failed)
        for action in plan.actions:
            self._apply(action)
        failures = list(plan.failures)
        samples: list[Sample] = []
        output = np.zeros_like(activations, dtype=np.float32)
        for index, first, span in plan.runnable:
            rows = slice(first, first + len(span.tokens))
            self._run_span(span, activations[rows], output[rows])
            if self._model.vocabulary:
                try:
                    samples += self._sampled(index, span, output[rows])
                except SamplingError as error:
                    failures.append(SpanFailure(index, str(error)))
        failures.sort(key=lambda failure: failure.span)
        return StageOutput(None if self._model.vocabulary else output, tuple(samples), tuple(failures))

    def _apply(self, action: KvTrim | KvCopy) -> None:
        for cache in (self._keys, self._values):
            if isinstance(action, KvTrim):
                cache[action.slot, :, :, action.keep :] = self._empty
            else:
                cache[action.target, :, :, : action.length] = cache[action.source, :, :, : action.length]

    def _run_span(self, span: Span, activations: Activations, output: Activations) -> None:
        """Run the rows of a span in order; the result goes into `output`."""
        keys, values = self._keys[span.slot], self._values[span.slot]
        for row in range(len(span.tokens)):
            cells = _context(span, row)
            output[row] = self._model.run_row(activations[row].copy(), len(cells) - 1, cells, keys, values)

    def _sampled(self, index: int, span: Span, output: Activations) -> list[Sample]:
        parameters = self._book.sampling[span.slot]
        samples = []
        for place, row in enumerate(span.sample_rows):
            logits: Vector = self._model.logits(output[row].copy())
            position = len(_context(span, row))
            if place < len(span.given):
                token = span.given[place]
                logprob: TokenLogprob | None = score(logits, token, parameters.prompt_logprobs, position)
            else:
                history = self._book.history(span, row) if needs_history(parameters) else ()
                token, logprob = sample(logits, parameters, position, history)
            samples.append(Sample(index, row, token, logprob))
        return samples


def _context(span: Span, row: int) -> npt.NDArray[np.intp]:
    """Cells that a row sees, in the order of positions, its own the last.

    Node i of a tree lies in cell start + i; a row sees the positions before the tree and its own ancestors.
    """
    if span.parents is None:
        return np.arange(span.start + row + 1)
    path = []
    node = row
    while node >= 0:
        path.append(span.start + node)
        node = span.parents[node]
    return np.concatenate([np.arange(span.start), np.array(path[::-1], dtype=np.intp)])
