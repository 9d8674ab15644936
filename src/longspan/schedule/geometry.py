"""The shape of an iteration: all that its duration may depend on."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from longspan.schedule.passes import Block, Passes, count_passes, runs_of
from longspan.schedule.span import Phase, Span
from longspan.schedule.sub_batches import places

_FIRST = attrgetter("first")
_PREFILL_PHASES = (Phase.PREFILL, Phase.RECOMPUTE)


class Geometry(msgspec.Struct, frozen=True, gc=False):
    """Counts over the spans of an iteration; span i has x_i rows behind a history of L_i positions.

    exact_rows: decode and verify rows. prefill_rows: prefill and replay rows. sequences: spans.
    sampled_rows: rows whose next token is sampled, which alone pass the output matrix.
    kv_read: positions whose keys and values are read, over all passes (see `schedule.passes`).
    history_rows: sum of L_i x_i. square_rows: sum of x_i squared. Attention pairs are summed by sequence, because a
        batch priced by its means is up to 17 % wrong.
    widest: largest x_i. sub_batches: passes over the layers.
    """

    exact_rows: int = 0
    prefill_rows: int = 0
    sequences: int = 0
    kv_read: int = 0
    history_rows: int = 0
    square_rows: int = 0
    widest: int = 0
    sub_batches: int = 0
    sampled_rows: int = 0

    @property
    def rows(self) -> int:
        """Rows of all spans."""
        return self.exact_rows + self.prefill_rows

    @property
    def pairs(self) -> int:
        """Twice the attention pairs of query and key: sum of 2 L_i x_i + x_i squared."""
        return 2 * self.history_rows + self.square_rows

    @property
    def mixed(self) -> bool:
        """True when decode and prefill rows run together."""
        return self.exact_rows > 0 and self.prefill_rows > 0

    def joined(self, start: int, rows: int) -> Geometry:
        """This geometry with one more prefill span, on a slot that starts a sub-batch of its own."""
        return Geometry(
            self.exact_rows,
            self.prefill_rows + rows,
            self.sequences + 1,
            self.kv_read + start + rows,
            self.history_rows + start * rows,
            self.square_rows + rows * rows,
            max(self.widest, rows),
            self.sub_batches + 1,
            self.sampled_rows,
        )


def geometry_of(spans: Sequence[Span]) -> Geometry:
    """The geometry of spans in slot order; linear in their number."""
    return geometry_of_shapes(
        [
            (span.slot, span.start, len(span.tokens), span.phase not in _PREFILL_PHASES, len(span.sample_rows))
            for span in spans
        ]
    )


class ExactShape(NamedTuple):
    """Decode rows or windows before prefill joins them: their geometry, and blocks for counting passes."""

    geometry: Geometry
    blocks: list[Block]


NO_ROWS = ExactShape(Geometry(), [])


def decode_shape(slots: list[int], starts: list[int]) -> ExactShape:
    """One decode row on each of `slots`, which ascend, behind `starts` positions."""
    rows = len(slots)
    blocks = runs_of(slots, starts)
    passes, reads = count_passes(blocks)
    return ExactShape(Geometry(rows, 0, rows, reads, sum(starts), rows, min(rows, 1), passes, rows), blocks)


def window_shape(spans: Sequence[Span]) -> ExactShape:
    """Windows in slot order."""
    return ExactShape(geometry_of(spans), [Block(span.slot, 1, len(span.tokens), span.start) for span in spans])


def join_geometry(exact: ExactShape, prefill: Sequence[Span]) -> Geometry:
    """The geometry of decode rows or windows together with prefill spans."""
    rows = history = squares = sampled = 0
    alone = exact.geometry
    widest = alone.widest
    prompts: list[Block] = []
    for span in prefill:
        count = len(span.tokens)
        rows += count
        history += span.start * count
        squares += count * count
        sampled += len(span.sample_rows)
        widest = max(widest, count)
        prompts.append(Block(span.slot, 1, count, span.start))
    passes, reads = _mixed_passes(exact.blocks, prompts, Passes(alone.sub_batches, alone.kv_read))
    return Geometry(
        alone.exact_rows,
        rows,
        alone.sequences + len(prefill),
        reads,
        alone.history_rows + history,
        alone.square_rows + squares,
        widest,
        passes,
        alone.sampled_rows + sampled,
    )


def geometry_of_shapes(shapes: Sequence[tuple[int, int, int, bool, int]]) -> Geometry:
    """The geometry of spans given as (slot, start, rows, decode or verify, sampled rows), in slot order."""
    exact = prefill = history = squares = widest = sampled = 0
    for _, start, rows, is_exact, asked in shapes:
        sampled += asked
        history += start * rows
        squares += rows * rows
        if rows > widest:
            widest = rows
        if is_exact:
            exact += rows
        else:
            prefill += rows
    decoding = [Block(slot, 1, rows, start) for slot, start, rows, decodes, _ in shapes if decodes]
    prompts = [Block(slot, 1, rows, start) for slot, start, rows, decodes, _ in shapes if not decodes]
    passes, reads = _mixed_passes(decoding, prompts, count_passes(decoding))
    return Geometry(exact, prefill, len(shapes), reads, history, squares, widest, passes, sampled)


def _mixed_passes(exact: list[Block], prefill: list[Block], alone: Passes) -> Passes:
    """The passes of decode or verify rows together with prefill (see `sub_batches.places`).

    exact: ordered by slot; alone: the passes of these.
    """
    neighbours = {slot for block in prefill for slot in (block.first - 1, block.first + 1)}
    decoding = {slot for slot in neighbours if _covers(exact, slot)}
    place = places([block.first for block in prefill], decoding)
    parts = [count_passes(sorted(block for block in prefill if place[block.first] == side)) for side in (-1, 1)]
    among = [block for block in prefill if not place[block.first]]
    parts.append(count_passes(sorted([*exact, *among])) if among else alone)
    return Passes(sum([part.number for part in parts]), sum([part.reads for part in parts]))


def _covers(blocks: list[Block], slot: int) -> bool:
    """Whether one of the blocks, ordered by slot, has the slot."""
    place = bisect.bisect_right(blocks, slot, key=_FIRST)
    return place > 0 and slot < blocks[place - 1].first + blocks[place - 1].slots
