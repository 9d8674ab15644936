"""The shape of an iteration, against the slow and obvious way to compute it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longspan.schedule.geometry import (
    Geometry,
    decode_shape,
    geometry_of,
    geometry_of_shapes,
    join_geometry,
    window_shape,
)
from longspan.schedule.passes import Block, Passes, count_passes, runs_of
from longspan.schedule.span import Phase, Span
from longspan.schedule.sub_batches import places, sub_batches

shapes = st.dictionaries(st.integers(0, 20), st.tuples(st.integers(1, 9), st.integers(0, 400)), min_size=1).map(
    lambda spans: [(slot, rows, start) for slot, (rows, start) in sorted(spans.items())]
)


def span(slot: int, start: int, rows: int, phase: Phase, sampled: int = 0) -> Span:
    return Span(slot, slot, 0, start, (1,) * rows, phase, tuple(range(rows))[rows - sampled :])


@given(shapes)
def test_passes_and_reads_are_those_that_the_library_makes(shape: list[tuple[int, int, int]]) -> None:
    made = sub_batches([(slot, rows) for slot, rows, _ in shape], 1 << 20)
    reads = sum(len(parts) * max(shape[index][2] + first + rows for index, first, rows in parts) for parts in made)
    counted = count_passes([Block(slot, 1, rows, start) for slot, rows, start in shape])
    assert counted == Passes(len(made), reads)


@given(shapes, st.data())
def test_passes_of_a_mixed_iteration_are_those_of_its_batch(
    shape: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    phases = [data.draw(st.sampled_from([Phase.VERIFY, Phase.PREFILL])) for _ in shape]
    geometry = geometry_of(
        [span(slot, start, rows, phase) for (slot, rows, start), phase in zip(shape, phases, strict=True)]
    )
    decoding = {slot for (slot, _, _), phase in zip(shape, phases, strict=True) if phase is Phase.VERIFY}
    sides = places({slot for slot, _, _ in shape} - decoding, decoding)
    batch = sorted(shape, key=lambda entry: sides.get(entry[0], 0))
    made = sub_batches([(slot, rows) for slot, rows, _ in batch], 1 << 20)
    reads = sum(len(parts) * max(batch[index][2] + first + rows for index, first, rows in parts) for parts in made)
    assert (geometry.sub_batches, geometry.kv_read) == (len(made), reads)


def test_passes_as_measured() -> None:
    def passes(*spans: tuple[int, int]) -> int:
        return count_passes([Block(slot, 1, rows, 0) for slot, rows in spans]).number

    assert passes((0, 1), (1, 1), (2, 1), (3, 1)) == 1
    assert passes((0, 1), (2, 1), (4, 1), (6, 1)) == 4
    assert passes((0, 1), (1, 4), (2, 8)) == 3
    assert passes() == 0


@given(st.dictionaries(st.integers(0, 20), st.integers(0, 400)))
def test_runs_count_as_their_rows_do(starts: dict[int, int]) -> None:
    slots = sorted(starts)
    runs = runs_of(slots, [starts[slot] for slot in slots])
    assert count_passes(runs) == count_passes([Block(slot, 1, 1, starts[slot]) for slot in slots])
    assert sum(block.slots for block in runs) == len(slots)
    assert len(runs) == len({slot - place for place, slot in enumerate(slots)})


def test_sums_go_by_sequence() -> None:
    geometry = geometry_of([span(0, 100, 1, Phase.DECODE, 1), span(1, 20, 8, Phase.PREFILL)])
    assert geometry == Geometry(
        exact_rows=1,
        prefill_rows=8,
        sequences=2,
        kv_read=101 + 28,
        history_rows=100 + 160,
        square_rows=1 + 64,
        widest=8,
        sub_batches=2,
        sampled_rows=1,
    )
    assert geometry.rows == 9
    assert geometry.pairs == 2 * 260 + 65
    assert geometry.mixed
    assert not geometry_of([span(0, 1, 1, Phase.DECODE)]).mixed
    assert geometry_of_shapes([(0, 100, 1, True, 1), (1, 20, 8, False, 0)]) == geometry


@given(
    st.dictionaries(st.integers(0, 20), st.integers(0, 500), max_size=12),
    st.dictionaries(st.integers(0, 20), st.tuples(st.integers(0, 500), st.integers(1, 9)), max_size=4),
)
def test_the_quick_ways_agree_with_the_plain_one(
    decodes: dict[int, int], prefills: dict[int, tuple[int, int]]
) -> None:
    slots = sorted(decodes.keys() - prefills.keys())
    decode = [span(slot, decodes[slot], 1, Phase.DECODE, 1) for slot in slots]
    prefill = [span(slot, start, rows, Phase.PREFILL, rows % 2) for slot, (start, rows) in prefills.items()]
    together = geometry_of(sorted([*decode, *prefill], key=lambda entry: entry.slot))
    for alone in (decode_shape(slots, [entry.start for entry in decode]), window_shape(decode)):
        assert alone.geometry == geometry_of(decode)
        assert join_geometry(alone, prefill) == together


def test_joining_for_a_prediction() -> None:
    """As a prompt on a slot apart, which reads its own history once more."""
    decode = decode_shape([0, 1], [20, 30])
    joined = decode.geometry.joined(30, 10)
    assert joined == geometry_of(
        [span(0, 20, 1, Phase.DECODE, 1), span(1, 30, 1, Phase.DECODE, 1), span(3, 30, 10, Phase.PREFILL)]
    )
