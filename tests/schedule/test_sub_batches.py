from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.schedule.sub_batches import places, sub_batches

UNLIMITED = 1 << 30

spans = st.dictionaries(st.integers(0, 20), st.integers(1, 12), max_size=8).map(lambda rows: sorted(rows.items()))


def test_the_counts_that_were_measured() -> None:
    """On build 11549: consecutive slots go together, and spans of 1, 4 and 8 rows make sub-batches of 3, 6, 4."""
    assert sub_batches([(slot, 1) for slot in range(4)], UNLIMITED) == [
        [(0, 0, 1), (1, 0, 1), (2, 0, 1), (3, 0, 1)]
    ]
    assert [len(batch) for batch in sub_batches([(0, 1), (1, 1), (3, 1), (4, 1)], UNLIMITED)] == [2, 2]
    assert [len(batch) for batch in sub_batches([(0, 1), (2, 1), (4, 1), (6, 1)], UNLIMITED)] == [1, 1, 1, 1]
    batches = sub_batches([(0, 1), (1, 4), (2, 8)], UNLIMITED)
    assert batches == [[(0, 0, 1), (1, 0, 1), (2, 0, 1)], [(1, 1, 3), (2, 1, 3)], [(2, 4, 4)]]


def test_nothing_makes_no_batch() -> None:
    assert sub_batches([], UNLIMITED) == []


@settings(deadline=None)
@given(spans=spans, limit=st.integers(1, 30))
def test_every_row_is_computed_once_in_order(spans: list[tuple[int, int]], limit: int) -> None:
    done = [0] * len(spans)
    for batch in sub_batches(spans, limit):
        for index, first, rows in batch:
            assert first == done[index]
            assert rows > 0
            done[index] += rows
    assert done == [rows for _, rows in spans]


@settings(deadline=None)
@given(spans=spans, limit=st.integers(1, 30))
def test_a_sub_batch_is_what_the_library_takes(spans: list[tuple[int, int]], limit: int) -> None:
    for batch in sub_batches(spans, limit):
        slots = [spans[index][0] for index, _, _ in batch]
        assert slots == list(range(slots[0], slots[0] + len(slots))), "consecutive and ascending"
        assert len({rows for _, _, rows in batch}) == 1, "the same number of each"
        assert sum(rows for _, _, rows in batch) <= limit


@settings(deadline=None)
@given(spans=spans)
def test_a_sub_batch_takes_all_the_neighbours_it_can(spans: list[tuple[int, int]]) -> None:
    remaining = dict(spans)
    for batch in sub_batches(spans, UNLIMITED):
        taken = {spans[index][0]: rows for index, _, rows in batch}
        assert min(remaining) in taken, "the first span with rows left is always served"
        assert max(taken) + 1 not in remaining
        for slot, rows in taken.items():
            remaining[slot] -= rows
            if not remaining[slot]:
                del remaining[slot]
    assert not remaining


def test_prefill_goes_where_nobody_joins_it() -> None:
    assert places([2], {0, 1}) == {2: -1}
    assert places([0], {1}) == {0: 1}
    assert places([0, 3, 4], {2}) == {0: -1, 3: -1, 4: -1}
    assert places([0, 1], {2}) == {0: 1, 1: 1}
    assert places([1], {0, 2}) == {1: 0}
    assert places([1, 2], {0, 3}) == {1: 0, 2: 0}
    assert places([], {2}) == {}


@st.composite
def mixed(draw: st.DrawFn) -> tuple[list[tuple[int, int]], set[int], dict[int, int]]:
    """Spans in the order of the batch, the slots that decode, and where the others were placed."""
    entries = draw(spans)
    decoding = {slot for slot, _ in entries if draw(st.booleans())}
    sides = places([slot for slot, _ in entries if slot not in decoding], decoding)
    return sorted(entries, key=lambda entry: sides.get(entry[0], 0)), decoding, sides


@settings(deadline=None)
@given(mixed())
def test_what_goes_to_an_end_is_joined_by_no_row_that_decodes(
    placed: tuple[list[tuple[int, int]], set[int], dict[int, int]],
) -> None:
    batch, decoding, sides = placed
    moved = {slot for slot, side in sides.items() if side}
    for parts in sub_batches(batch, UNLIMITED):
        members = {batch[place][0] for place, _, _ in parts}
        assert not members & moved or not members & decoding


@settings(deadline=None)
@given(mixed())
def test_decode_rows_need_no_more_sub_batches_for_what_is_moved(
    placed: tuple[list[tuple[int, int]], set[int], dict[int, int]],
) -> None:
    batch, decoding, sides = placed

    def with_decode_rows(entries: list[tuple[int, int]]) -> int:
        made = sub_batches(entries, UNLIMITED)
        return sum(any(entries[place][0] in decoding for place, _, _ in parts) for parts in made)

    stays = sorted(entry for entry in batch if not sides.get(entry[0], 0))
    assert with_decode_rows(batch) == with_decode_rows(stays)
