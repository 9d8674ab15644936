"""The spans of an iteration as the rows of one llama.cpp batch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from longspan.runtime.base import Activations
from longspan.runtime.slots import SlotPlan
from longspan.schedule.span import Span
from longspan.schedule.sub_batches import SubBatch, places, sub_batches


def row_position(span: Span, row: int) -> int:
    """Position of a row: along a chain its index, in a tree its depth."""
    if span.parents is None:
        return span.start + row
    depth, node = 0, span.parents[row]
    while node >= 0:
        depth, node = depth + 1, span.parents[node]
    return span.start + depth


class RowBatch:
    """The runnable spans as arrays, in an order of their own (see `schedule.sub_batches.places`).

    spans: in the order of the batch. count: rows of the batch, padding included. positions, slots: (count,).
    firsts: row of the batch where each span of the plan begins. parts: rows of each sub-batch, in order.
    padded: (slot, end) of the spans that got a padding row, whose slot must be trimmed to `end` afterwards.

    pad: no sub-batch may be a single row; such a row gets a copy of itself at the next position for company.
    """

    def __init__(self, plan: SlotPlan, iteration_rows: int, *, pad: bool = False) -> None:
        runnable, places = _laid_out(plan)
        self.spans = [span for _, _, span in runnable]
        self._iteration_rows = iteration_rows
        counts = [len(span.tokens) for span in self.spans]
        batches = _batches(self.spans, counts)
        extra = [0] * len(counts)
        while pad and (alone := next((batch[0][0] for batch in batches if _rows(batch) == 1), None)) is not None:
            extra[alone] = 1
            batches = _batches(self.spans, [count + more for count, more in zip(counts, extra, strict=True)])
        self.padded = [(span.slot, span.end) for span, more in zip(self.spans, extra, strict=True) if more]
        sizes = [count + more for count, more in zip(counts, extra, strict=True)]
        self.count = sum(sizes)
        self._pad = pad
        self._batches = batches
        self.parts = [_rows(batch) for batch in batches]
        self._firsts: list[int] = [0, *itertools.accumulate(sizes[:-1])]
        self.firsts = self._firsts if places is None else [self._firsts[place] for place in places]
        slots = np.array([span.slot for span in self.spans], np.int32)
        if self.count == len(sizes):  # single rows, the rule while answers are made
            self.slots = slots
            self.positions = np.array([span.start for span in self.spans], np.int32)
        else:
            self.slots = np.repeat(slots, sizes)
            self.positions = np.concatenate(
                [_positions(span, size) for span, size in zip(self.spans, sizes, strict=True)]
            )
        # Row of the iteration that each row of the batch computes; a padding row repeats the one before it.
        self._source: npt.NDArray[np.intp] | None = None
        if pad or places is not None or self.count != iteration_rows:
            self._source = np.concatenate(
                [
                    np.minimum(np.arange(first, first + size), first + count - 1)
                    for (_, first, _), size, count in zip(runnable, sizes, counts, strict=True)
                ]
            )
        self._order: npt.NDArray[np.intp] | None = None
        if len(self.spans) > 1:
            self._order = np.array(list(itertools.chain(*self._sub_batch_rows())), np.intp)

    def gather(self, activations: Activations) -> Activations:
        """The batch's rows out of the iteration's."""
        return np.ascontiguousarray(activations if self._source is None else activations[self._source])

    def computed_order(self, inputs: Activations) -> Activations:
        """The batch's rows in the order in which the sub-batches compute them."""
        return inputs if self._order is None else inputs[self._order]

    def outputs(self) -> npt.NDArray[np.int8]:
        """1 for the rows that are sampled, (count,)."""
        marks = np.zeros(self.count, np.int8)
        for span, first in zip(self.spans, self._firsts, strict=True):
            for row in span.sample_rows:
                marks[first + row] = 1
        if self._pad:
            for rows in self._sub_batch_rows():
                # llama.cpp drops other rows before the last layer's feed-forward part: one would be alone again.
                if marks[rows].sum() == 1:
                    marks[rows[:2]] = 1
        return marks

    def _sub_batch_rows(self) -> list[list[int]]:
        """Rows of the batch that each sub-batch holds."""
        first = self._firsts
        return [
            [place for i, row, rows in batch for place in range(first[i] + row, first[i] + row + rows)]
            for batch in self._batches
        ]

    def restore(self, computed: Activations) -> Activations:
        """Rows that came in the order of the sub-batches, in the order of the iteration; zeros where a span did not
        run. A fresh array."""
        if self._order is None and self._source is None:
            return computed.copy()
        ordered = computed
        if self._order is not None:
            ordered = np.empty_like(computed)
            ordered[self._order] = computed
        if self._source is None:
            return ordered
        result = np.zeros((self._iteration_rows, computed.shape[1]), np.float32)
        # Written backwards, so that a row wins over the padding row that copies it.
        result[self._source[::-1]] = ordered[::-1]
        return result


def _laid_out(plan: SlotPlan) -> tuple[Sequence[tuple[int, int, Span]], list[int] | None]:
    """The runnable spans in the order of the batch, and the place of each there; None: in their own order."""
    runnable = plan.runnable
    decoding = {span.slot for _, _, span in runnable if span.phase.is_exact}
    if not decoding or len(decoding) == len(runnable):
        return runnable, None
    sides = places([span.slot for _, _, span in runnable if not span.phase.is_exact], decoding)
    order = sorted(range(len(runnable)), key=lambda index: sides.get(runnable[index][2].slot, 0))
    placed = [0] * len(order)
    for place, index in enumerate(order):
        placed[index] = place
    return [runnable[index] for index in order], placed


def _batches(spans: list[Span], sizes: list[int]) -> list[SubBatch]:
    return sub_batches([(span.slot, size) for span, size in zip(spans, sizes, strict=True)], 1 << 30)


def _rows(batch: SubBatch) -> int:
    return sum(rows for _, _, rows in batch)


def _positions(span: Span, size: int) -> npt.NDArray[np.int32]:
    if span.parents is None:
        return np.arange(span.start, span.start + size, dtype=np.int32)
    return np.array([row_position(span, row) for row in range(size)], np.int32)
