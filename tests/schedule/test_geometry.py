"""The shape of an iteration, against the slow and obvious way to compute it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longspan.schedule.geometry import (
    Geometry,
    count_sub_batches,
    decode_geometry,
    geometry_of,
    join_geometry,
)
from longspan.schedule.span import Phase, Span
from longspan.schedule.sub_batches import sub_batches

shapes = st.dictionaries(st.integers(0, 20), st.integers(1, 9), min_size=1, max_size=12).map(
    lambda rows: sorted(rows.items())
)


def span(slot: int, start: int, rows: int, phase: Phase, sampled: int = 0) -> Span:
    return Span(slot, slot, 0, start, (1,) * rows, phase, tuple(range(rows))[rows - sampled :])


@given(shapes)
def test_the_count_of_sub_batches_is_what_the_library_makes(shape: list[tuple[int, int]]) -> None:
    assert count_sub_batches(shape) == len(sub_batches(shape, 1 << 20))


def test_sub_batches_as_measured() -> None:
    assert count_sub_batches([(0, 1), (1, 1), (2, 1), (3, 1)]) == 1
    assert count_sub_batches([(0, 1), (2, 1), (4, 1), (6, 1)]) == 4
    assert count_sub_batches([(0, 1), (1, 4), (2, 8)]) == 3
    assert count_sub_batches([]) == 0


def test_sums_go_by_sequence() -> None:
    geometry = geometry_of([span(0, 100, 1, Phase.DECODE, 1), span(1, 20, 8, Phase.PREFILL)])
    assert geometry == Geometry(
        exact_rows=1,
        prefill_rows=8,
        sequences=2,
        kv_read=120,
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
    alone = decode_geometry(slots, sum(entry.start for entry in decode))
    assert alone == geometry_of(decode)
    together = sorted([*decode, *prefill], key=lambda entry: entry.slot)
    assert join_geometry(alone, slots, prefill) == geometry_of(together)


def test_joining_for_a_prediction() -> None:
    decode = decode_geometry([0, 1], 50)
    joined = decode.joined(30, 10)
    assert joined == geometry_of(
        [span(0, 20, 1, Phase.DECODE, 1), span(1, 30, 1, Phase.DECODE, 1), span(3, 30, 10, Phase.PREFILL)]
    )
