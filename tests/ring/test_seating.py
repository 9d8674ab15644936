"""Who gets which stage."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longspan.ring.member_messages import HeldLayers
from longspan.ring.seating import Member, take_seats

DIGEST = "ab" * 32
RANGES = ((0, 2), (2, 4), (4, 6))


def member(name: str, number: int = 0, holds: tuple[int, int] | None = None, digest: str = DIGEST) -> Member:
    held = HeldLayers(digest, *holds) if holds is not None else None
    return Member(name, "i" * 8, number, ("h", number + 1), held)


def names(
    *members: Member, before: dict[int, str] | None = None, wanted: dict[int, str] | None = None
) -> dict[int, str]:
    seats = take_seats(RANGES, members, before or {}, wanted or {}, DIGEST)
    return {index: seat.name for index, seat in seats.items()}


def test_first_come_first_served() -> None:
    assert names(member("b", 1), member("a", 2), member("d", 4), member("c", 3)) == {0: "b", 1: "a", 2: "c"}


def test_who_had_a_stage_keeps_it_and_a_spare_takes_the_lost_one() -> None:
    spare = member("spare", 9)
    assert names(spare, member("c", 8), member("a", 7), before={0: "a", 1: "b", 2: "c"}) == {
        0: "a",
        1: "spare",
        2: "c",
    }


def test_loaded_layers_are_used_again() -> None:
    members = (member("x", 1, (4, 6)), member("y", 2, (0, 2)), member("z", 3, (2, 4)))
    assert names(*members) == {0: "y", 1: "z", 2: "x"}
    other = member("x", 1, (0, 2), digest="cd" * 32)
    assert names(other, member("y", 2, (0, 2))) == {0: "y", 1: "x"}


def test_an_empty_one_is_taken_before_one_with_other_layers() -> None:
    assert names(member("loaded", 1, (0, 6)), member("empty", 2)) == {0: "empty", 1: "loaded"}


def test_a_locked_stage_waits_for_its_name() -> None:
    assert names(member("a", 1), member("b", 2), wanted={0: "b", 1: "x", 2: "a"}) == {0: "b", 2: "a"}


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.sampled_from([None, *RANGES, (0, 6)])),
        max_size=6,
        unique_by=lambda pair: pair[0],
    ),
    st.dictionaries(st.integers(0, 2), st.sampled_from("abcdef")),
)
def test_nobody_has_two_stages_and_none_stays_empty_without_need(
    drawn: list[tuple[str, tuple[int, int] | None]], before: dict[int, str]
) -> None:
    members = [member(name, number, held) for number, (name, held) in enumerate(drawn)]
    seats = names(*members, before=before)
    assert len(set(seats.values())) == len(seats) == min(3, len(members))
    if len(set(before.values())) == len(before):
        present = {name for name, _ in drawn}
        assert all(seats[index] == name for index, name in before.items() if name in present)
