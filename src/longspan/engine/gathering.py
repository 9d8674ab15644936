"""Stages that join by themselves: waiting for them, and giving them their layers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from longspan.errors import RingError
from longspan.ring.registrar import Registrar
from longspan.ring.ring_plan import parse_address
from longspan.ring.seating import Member, take_seats
from longspan.ring.security import Security
from longspan.status import MemberStatus

REJOIN_SECONDS = 2.0
"""How long one try to form a ring again waits for members, before it is said which layers are missing."""


class Gathering:
    """The members of one engine's ring.

    first: index of the first stage that a member holds. ranges: layers of the stages from there on. names: whom a
    lock wants for a stage. on_return: called when a member that has a stage came back as another process.
    """

    def __init__(
        self,
        address: str,
        digest: str,
        security: Security,
        first: int,
        ranges: Sequence[tuple[int, int]],
        names: Mapping[int, str],
        on_return: Callable[[str], None],
    ) -> None:
        self._address = parse_address(address)
        self._digest = digest
        self._first = first
        self._ranges = ranges
        self._names = names
        self._on_return = on_return
        self._registrar = Registrar(digest, security, on_return=self._returned)
        self._listening = False
        self._complete = False
        self._seated: dict[int, str] = {}

    async def seats(self, report: Callable[[str], None]) -> list[Member]:
        """A member for each stage.

        The first time it waits for them as long as it takes. Later, when a ring is to form again, it raises a
        RingError that names the missing layers; those who wait for answers are told.
        """
        if not self._listening:
            await self._registrar.start(*self._address)
            self._listening = True
            report(f"stages can join at {self._address[0]}:{self._registrar.port}")
        try:
            async with asyncio.timeout(REJOIN_SECONDS if self._complete else None):
                return await self._wait(report)
        except TimeoutError:
            raise RingError(self._missing(self._take())) from None

    async def _wait(self, report: Callable[[str], None]) -> list[Member]:
        said = ""
        while len(seats := self._take()) < len(self._ranges):
            if (text := self._missing(seats)) != said:
                said = text
                report(text)
            await self._registrar.change()
        self._complete = True
        self._seated = {index: member.name for index, member in seats.items()}
        return [seats[index] for index in range(len(self._ranges))]

    def _take(self) -> dict[int, Member]:
        return take_seats(self._ranges, self._registrar.members, self._seated, self._names, self._digest)

    def _missing(self, seats: Mapping[int, Member]) -> str:
        parts = []
        for index, (start, end) in enumerate(self._ranges):
            if index in seats:
                continue
            name = self._names.get(index) or self._seated.get(index)
            who = f" of {name}, which is not there" if name else ""
            parts.append(f"layers {start}-{end} (stage {self._first + index}{who})")
        return f"waiting for stages to join: {', '.join(parts)} missing; {len(self._registrar.members)} are there"

    def _returned(self, member: Member) -> None:
        if member.name in self._seated.values():
            self._on_return(f"stage {member.name} has come back as another process")

    def members(self) -> tuple[MemberStatus, ...]:
        """Who has joined, and which stage it has; may be called from any thread."""
        seats = {name: self._first + index for index, name in dict(self._seated).items()}
        return tuple(
            MemberStatus(member.name, f"{member.address[0]}:{member.address[1]}", seats.get(member.name))
            for member in self._registrar.members
        )

    async def remove(self, name: str) -> bool:
        """Send a member away for good; whether it had a stage. Raises UnknownStageError."""
        await self._registrar.remove(name)
        return name in self._seated.values()

    async def close(self) -> None:
        """Stop listening for stages."""
        await self._registrar.close()
