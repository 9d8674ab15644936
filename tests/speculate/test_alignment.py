from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from longspan.speculate.alignment import Wish, aligned
from longspan.speculate.depth import Conditions

FIXED, BY_ROW = 0.020, 0.004
TABLE = [FIXED + BY_ROW * rows for rows in range(65)]
FAR = Conditions(TABLE, 1.5, 0.2, 63, sequences=8, group=4)
BUSY = FAR._replace(link=0.0)


def wish(slot: int, drafts: int, chance: float = 0.9, wanted: int | None = None) -> Wish:
    return Wish(slot, [chance**count for count in range(1, drafts + 1)], drafts if wanted is None else wanted)


def test_one_alone_sends_what_it_wishes() -> None:
    assert aligned([wish(3, 7, 0.1)], BUSY) == [7]


def test_without_wishes_nothing_is_sent() -> None:
    assert aligned([wish(slot, 4, wanted=0) for slot in range(4)], FAR) == [0, 0, 0, 0]


def test_windows_that_leave_together_are_equally_wide() -> None:
    wishes = [wish(0, 4, wanted=3), wish(1, 4, wanted=0), wish(2, 4, wanted=4), wish(3, 4, wanted=3)]
    drafts = aligned(wishes, FAR)
    assert len(set(drafts)) == 1 and drafts[0] >= 3


def test_what_one_has_beyond_the_others_must_pay_for_all() -> None:
    alone = [wish(0, 2, 0.8), *(wish(slot, 0) for slot in (1, 2, 3))]
    assert aligned(alone, FAR) == [0, 0, 0, 0]
    sure = [wish(0, 15, 0.99), *(wish(slot, 0) for slot in (1, 2, 3))]
    assert aligned(sure, FAR) == [15, 0, 0, 0]
    # Where stages are never idle, a pass more takes from everybody.
    assert aligned(sure, BUSY._replace(seconds=[FIXED + 0.02 * rows for rows in range(65)])) == [0, 0, 0, 0]


def test_among_neighbours_a_wide_window_takes_a_pass_and_among_strangers_it_has_one() -> None:
    ring = FAR._replace(link=0.05)
    for slots, sent in (((0, 1, 2, 3), 0), ((0, 2, 4, 6), 4)):
        wishes = [wish(slot, 0 if slot else 4, 0.97) for slot in slots]
        assert sum(aligned(wishes, ring)) == sent


@given(
    st.lists(st.tuples(st.lists(st.floats(0.0, 1.0), max_size=12), st.integers(0, 12)), min_size=1, max_size=9),
    st.floats(0.0, 0.3),
)
def test_nobody_sends_more_than_there_is(drafts: list[tuple[list[float], int]], link: float) -> None:
    wishes = []
    for slot, (chances, wanted) in enumerate(drafts):
        survival: Sequence[float] = sorted(chances, reverse=True)
        wishes.append(Wish(slot, survival, min(wanted, len(survival))))
    found = aligned(wishes, FAR._replace(link=link, sequences=max(8, len(wishes))))
    assert len(found) == len(wishes)
    assert all(0 <= count <= len(wish.survival) for count, wish in zip(found, wishes, strict=True))
    assert max(found) <= max(wish.drafts for wish in wishes)
