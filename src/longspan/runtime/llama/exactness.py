"""Finds from how many rows on a row depends on what else is in the batch.

Backends choose another kernel for larger batches (llama.cpp's CPU attention from 64 rows on), and its sums differ
in the last bits. Below that limit every row is computed exactly as if it were alone.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from longspan.errors import LongspanError
from longspan.runtime.llama.context import LlamaContext
from longspan.runtime.llama.graph_tap import GraphTap

_HISTORY = 8
"""Positions before the compared rows, and how many rows are compared."""


@dataclasses.dataclass(frozen=True)
class Exactness:
    """What the self-check found.

    exact_rows: batches of fewer rows are exact. pad: a batch of one row takes another kernel than all larger ones
    (matrices in F16 or F32 do that on the CPU), so a single row must get company to be exact.
    hidden_rows: most rows of a batch whose logits do not change when the hidden states of all its rows are kept
    (every row then passes the output matrix); 0 when they always do, None when that was not looked at.
    """

    exact_rows: int
    pad: bool = False
    hidden_rows: int | None = None


_GUESSES = (64, 128, 256, 512)
"""Where kernels are known to change; tried before searching."""


class ExactnessProbe:
    """Compares rows run together with the same rows run one at a time, bit for bit, on slot 0.

    The slot is empty afterwards. max_rows: the largest batch that is looked at.
    """

    def __init__(self, context: LlamaContext, tap: GraphTap | None, max_rows: int) -> None:
        self._context = context
        self._tap = tap
        # A context shorter than the largest batch cannot hold one, and never has to.
        self.max_rows = min(max_rows, context.max_rows, context.cells - _HISTORY)
        generator = np.random.default_rng(0)
        self._input = generator.standard_normal((_HISTORY + max_rows, context.width)).astype(np.float32)
        self._alone: list[npt.NDArray[np.float32]] = []

    def find(self) -> Exactness:
        """The limit below which batches are exact: at least 2, `max_rows` + 1 when all are."""
        if self.max_rows < 2 * _HISTORY:
            return Exactness(2)
        limit = self._limit(1)
        if limit > 2:
            return Exactness(limit)
        padded = self._limit(2)
        return Exactness(padded, pad=True) if padded > 3 else Exactness(2)

    def hidden_rows(self, found: Exactness, max_outputs: int) -> int:
        """What `Exactness.hidden_rows` says, on a stage that samples."""
        for rows in (min(max_outputs, self.max_rows), found.exact_rows - 1):
            if not 1 <= rows <= max_outputs:
                continue
            self._context.trim(0, 0)
            self._run(0, _HISTORY)
            usual = self._run(_HISTORY, rows)
            self._context.keep_hidden(True)
            try:
                kept = self._run(_HISTORY, rows)
            finally:
                self._context.keep_hidden(False)
                self._context.trim(0, 0)
            if all(np.array_equal(row, same) for row, same in zip(usual, kept, strict=True)):
                return rows
        return 0

    def _limit(self, alone: int) -> int:
        """The limit when a row alone is run as `alone` rows: itself, and copies of it for company."""
        self._alone = [self._run(position, alone)[0] for position in range(2 * _HISTORY)][_HISTORY:]
        low, high = alone, self.max_rows + 1
        for size in (size for guess in _GUESSES for size in (guess - 1, guess)):
            if low < size < high:
                if self._exact(size):
                    low = size
                else:
                    high = size
        if high == self.max_rows + 1 and self._exact(self.max_rows):
            low = self.max_rows
        while high - low > 1:
            middle = (low + high) // 2
            if self._exact(middle):
                low = middle
            else:
                high = middle
        self._context.trim(0, 0)
        return max(2, high)

    def _exact(self, rows: int) -> bool:
        self._context.trim(0, _HISTORY)
        together = self._run(_HISTORY, rows)
        return all(np.array_equal(row, alone) for row, alone in zip(together, self._alone, strict=False))

    def _run(self, start: int, rows: int) -> list[npt.NDArray[np.float32]]:
        """Results of the first rows of a batch at `start`: logits on the last stage, else residuals."""
        compared = min(rows, _HISTORY)
        positions = np.arange(start, start + rows, dtype=np.int32)
        outputs = np.zeros(rows, np.int8)
        outputs[:compared] = 1
        tap, reads = self._tap, self._tap is not None and self._tap.reads
        inputs = self._input[start : start + rows]
        for _ in range(2):  # the tap may have to look at names once more
            self._context.trim(0, start)
            if tap is not None:
                tap.prepare(inputs, 1)
            failure = self._context.decode(inputs, positions, np.zeros(rows, np.int32), None if reads else outputs)
            if failure:
                raise LongspanError(f"the self-check of {rows} rows failed: {failure}")
            if tap is not None and not tap.finish(rows, 1):
                continue
            if tap is None or not reads:
                return [self._context.logits(row).copy() for row in range(compared)]
            return [tap.buffer[row].copy() for row in range(compared)]
        raise LongspanError("the self-check could not reach this stage's input or residual tensor")
