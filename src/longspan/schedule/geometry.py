"""The shape of an iteration: all that its duration may depend on."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from longspan.schedule.span import Phase, Span

_PREFILL_PHASES = (Phase.PREFILL, Phase.RECOMPUTE)


class Geometry(msgspec.Struct, frozen=True, gc=False):
    """Counts over the spans of an iteration; span i has x_i rows behind a history of L_i positions.

    exact_rows: decode and verify rows. prefill_rows: prefill and replay rows. sequences: spans.
    sampled_rows: rows whose next token is sampled, which alone pass the output matrix.
    kv_read: sum of L_i, the positions whose keys and values are read.
    history_rows: sum of L_i x_i. square_rows: sum of x_i squared. Attention pairs are summed by sequence, because a
        batch priced by its means is up to 17 % wrong.
    widest: largest x_i. sub_batches: passes over the layers (see `schedule.sub_batches`).
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
            self.kv_read + start,
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


def decode_geometry(slots: Sequence[int], kv_read: int) -> Geometry:
    """The geometry of one decode row on each of these slots, in ascending order, behind `kv_read` positions."""
    rows = len(slots)
    if not rows:
        return Geometry()
    passes = 1
    if slots[-1] - slots[0] >= rows:
        passes += sum([right != left + 1 for left, right in pairwise(slots)])
    return Geometry(rows, 0, rows, kv_read, kv_read, rows, 1, passes, rows)


def join_geometry(decode: Geometry, slots: Sequence[int], prefill: Sequence[Span]) -> Geometry:
    """The geometry of one decode row on each of `slots` (alone: `decode`) together with prefill spans."""
    rows = kv_read = history = squares = sampled = 0
    widest = decode.widest
    for span in prefill:
        count = len(span.tokens)
        rows += count
        kv_read += span.start
        history += span.start * count
        squares += count * count
        sampled += len(span.sample_rows)
        widest = max(widest, count)
    return Geometry(
        decode.exact_rows,
        rows,
        decode.sequences + len(prefill),
        decode.kv_read + kv_read,
        decode.history_rows + history,
        decode.square_rows + squares,
        widest,
        decode.sub_batches + _added_sub_batches(slots, prefill),
        decode.sampled_rows + sampled,
    )


def _added_sub_batches(slots: Sequence[int], prefill: Sequence[Span]) -> int:
    """How many sub-batches prefill spans add to one row on each of `slots`.

    Only the neighbourhood matters: with its direct neighbours, a prefill span makes its own steps and may join two
    runs to one.
    """
    shape = {span.slot: len(span.tokens) for span in prefill}
    neighbours = {near for slot in shape for near in (slot - 1, slot + 1) if near not in shape}
    near_rows = sorted(slot for slot in neighbours if _is_in(slots, slot))
    before = [(slot, 1) for slot in near_rows]
    after = sorted([*shape.items(), *before])
    return count_sub_batches(after) - count_sub_batches(before)


def _is_in(ordered: Sequence[int], value: int) -> bool:
    index = bisect.bisect_left(ordered, value)
    return index < len(ordered) and ordered[index] == value


def geometry_of_shapes(shapes: Sequence[tuple[int, int, int, bool, int]]) -> Geometry:
    """The geometry of spans given as (slot, start, rows, decode or verify, sampled rows), in slot order."""
    exact = prefill = kv_read = history = squares = widest = sampled = 0
    for _, start, rows, is_exact, asked in shapes:
        sampled += asked
        kv_read += start
        history += start * rows
        squares += rows * rows
        if rows > widest:
            widest = rows
        if is_exact:
            exact += rows
        else:
            prefill += rows
    passes = count_sub_batches([(slot, rows) for slot, _, rows, _, _ in shapes])
    return Geometry(exact, prefill, len(shapes), kv_read, history, squares, widest, passes, sampled)


def count_sub_batches(spans: Iterable[tuple[int, int]]) -> int:
    """How many sub-batches spans given as (slot, rows), ordered by slot, make; linear in their number.

    A sub-batch joins consecutive slots and takes as many rows of each as the shortest has left, so the sub-batches
    of one run of slots are the steps of its profile of rows: one for each rise that was not reached before since
    the last lower span.
    """
    passes = 0
    next_slot = -1
    heights: list[int] = []
    for slot, rows in spans:
        if slot != next_slot:
            heights.clear()
        while heights and heights[-1] > rows:
            heights.pop()
        if not heights or heights[-1] < rows:
            heights.append(rows)
            passes += 1
        next_slot = slot + 1
    return passes
