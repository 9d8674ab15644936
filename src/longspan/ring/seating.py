"""Which member of a ring gets which stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from longspan.ring.member_messages import HeldLayers


@dataclasses.dataclass(frozen=True)
class Member:
    """A stage that has registered. number: in the order of joining. address: where it listens."""

    name: str
    incarnation: str
    number: int
    address: tuple[str, int]
    holds: HeldLayers | None = None


def take_seats(
    ranges: Sequence[tuple[int, int]],
    members: Sequence[Member],
    before: Mapping[int, str],
    names: Mapping[int, str],
    digest: str,
) -> dict[int, Member]:
    """The member for each stage, as far as there are enough; who is left over is a spare.

    In this order: a stage that a lock gives to a name waits for that one; who had a stage before keeps it; who has
    its layers loaded gets it; the others in the order in which they joined.
    before: names of those who had stages. names: whom a lock wants. Keys are indices of `ranges`.
    """
    free = {member.name: member for member in sorted(members, key=lambda member: member.number)}
    seats: dict[int, Member] = {}

    def seat(index: int, name: str) -> None:
        if index not in seats and name in free:
            seats[index] = free.pop(name)

    for index, name in names.items():
        seat(index, name)
    open_seats = [index for index in range(len(ranges)) if index not in names]
    for index in open_seats:
        if index in before:
            seat(index, before[index])
    for index in open_seats:
        loaded = HeldLayers(digest, *ranges[index])
        for member in list(free.values()):
            if member.holds == loaded:
                seat(index, member.name)
    for index in open_seats:
        # Who is loaded with what another stage needs comes last: that one may be back in a moment.
        for member in sorted(free.values(), key=lambda member: member.holds is not None):
            seat(index, member.name)
    return seats
