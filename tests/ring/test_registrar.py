"""Stages that register: let in, kept while they renew their lease, sent away with a reason."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from longspan import __version__
from longspan.errors import ProtocolError, RingError, UsageError
from longspan.ring import membership as membership_module
from longspan.ring.dial import connect
from longspan.ring.frame import PROTOCOL_VERSION, Kind
from longspan.ring.keys import create_authority, create_node
from longspan.ring.member_messages import JOIN, LEASE, HeldLayers, Join
from longspan.ring.membership import Membership
from longspan.ring.messages import Hello, Refuse, decode, encode
from longspan.ring.registrar import Registrar
from longspan.ring.seating import Member
from longspan.ring.security import Security, SecurityOptions, load_security
from longspan.ring.tcp import TcpLink

DIGEST = "ab" * 32
ME = Join("attic", "0123456789abcdef", "192.0.2.7", 7000)


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in another task, on a socket
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def registrar(port: int = 0, **options: object) -> AsyncIterator[Registrar]:
    found = Registrar(DIGEST, **options)  # type: ignore[arg-type]
    await found.start("127.0.0.1", port)
    try:
        yield found
    finally:
        await found.close()


async def greeted(
    door: Registrar, *, role: str = "member", digest: str = "", protocol: int = PROTOCOL_VERSION
) -> TcpLink:
    link = await connect("127.0.0.1", door.port, 5)
    await link.send(encode(Hello(protocol, __version__, role, "", digest)))
    return link


async def refusal(door: Registrar, **hello: object) -> str:
    link = await greeted(door, **hello)  # type: ignore[arg-type]
    try:
        return decode(await asyncio.wait_for(link.receive(), 5), Refuse).reason
    finally:
        await link.close()


@pytest.fixture
async def memberships() -> AsyncIterator[Callable[..., Membership]]:
    tasks: list[asyncio.Task[None]] = []

    def start(
        port: int, name: str = "attic", *, held: Callable[[], HeldLayers | None] = lambda: None
    ) -> Membership:
        found = Membership(("127.0.0.1", port), name, "", 7000, digest="", held=held)
        tasks.append(asyncio.create_task(found.run()))
        return found

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_member_says_where_it_listens_or_is_seen(memberships: Callable[..., Membership]) -> None:
    async with registrar() as door:
        memberships(door.port, "seen")
        link = await greeted(door, digest=DIGEST)
        await link.send(JOIN.encode(ME))
        assert LEASE.decode(await link.receive()).seconds > 1
        await until(lambda: len(door.members) == 2)
        assert {member.name: member.address for member in door.members} == {
            "seen": ("127.0.0.1", 7000),
            "attic": ("192.0.2.7", 7000),
        }
        await link.close()
        await until(lambda: [member.name for member in door.members] == ["seen"])


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        ({"protocol": PROTOCOL_VERSION + 1}, "protocol version mismatch: this coordinator speaks"),
        ({"digest": "cd" * 32}, "model mismatch: this coordinator serves the model with digest abababababab"),
        ({"role": "coordinator"}, "only stages join here"),
    ],
)
async def test_who_does_not_belong_is_told_why(hello: dict[str, object], reason: str) -> None:
    async with registrar() as door:
        assert reason in await refusal(door, **hello)
        assert door.members == ()


@pytest.mark.parametrize(
    "join",
    [
        msgspec.structs.replace(ME, name="../attic"),
        msgspec.structs.replace(ME, name=""),
        msgspec.structs.replace(ME, name="attic\n"),
        msgspec.structs.replace(ME, port=0),
        msgspec.structs.replace(ME, incarnation=""),
        msgspec.structs.replace(ME, host="h" * 300),
    ],
)
async def test_what_is_no_registration_ends_the_link(join: Join) -> None:
    with pytest.raises(ProtocolError, match="does not hold Join"):
        JOIN.decode(JOIN.encode(join))
    async with registrar() as door:
        link = await greeted(door)
        await link.send(JOIN.encode(join))
        with pytest.raises(RingError, match="closed by the peer"):
            await asyncio.wait_for(link.receive(), 5)
        assert door.members == ()


async def test_a_lease_that_is_not_renewed_ends() -> None:
    async with registrar(lease_seconds=0.3) as door:
        link = await greeted(door)
        await link.send(JOIN.encode(ME))
        await until(lambda: door.members)
        started = time.perf_counter()
        await until(lambda: not door.members)
        assert 0.2 < time.perf_counter() - started < 2
        await link.close()


async def test_leases_are_renewed_and_what_is_held_is_known_at_once(memberships: Callable[..., Membership]) -> None:
    held: HeldLayers | None = None
    async with registrar(lease_seconds=0.6) as door:
        memberships(door.port, held=lambda: held)
        await until(lambda: door.members)
        (before,) = door.members
        await asyncio.sleep(1.0)
        assert door.members == (before,)
        held = HeldLayers(DIGEST, 0, 2)
        await until(lambda: door.members[0].holds == held, 1.0)
        assert door.members[0].number == before.number


async def test_a_stage_finds_a_coordinator_that_was_away(
    memberships: Callable[..., Membership], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(membership_module, "LAST_RETRY_SECONDS", 0.1)
    monkeypatch.setattr(membership_module, "FIRST_RETRY_SECONDS", 0.05)
    async with registrar() as door:
        port = door.port
        memberships(port)
        await until(lambda: door.members)
    await asyncio.sleep(1.0)
    said = [record.getMessage() for record in caplog.records if "not registered" in record.getMessage()]
    assert len(said) == len(set(said)) <= 2, "the log grows while nobody is there"
    async with registrar(port) as door:
        await until(lambda: door.members)


async def test_the_same_process_that_comes_again_is_no_other(memberships: Callable[..., Membership]) -> None:
    returned: list[Member] = []
    async with registrar(on_return=returned.append) as door:
        first, second = await greeted(door), await greeted(door)
        await first.send(JOIN.encode(ME))
        await until(lambda: door.members)
        await second.send(JOIN.encode(ME))
        with pytest.raises(RingError):
            await first.receive() and await first.receive()
        await until(lambda: len(door.members) == 1)
        assert returned == []
        third = await greeted(door)
        await third.send(JOIN.encode(msgspec.structs.replace(ME, incarnation="f" * 16, port=7001)))
        await until(lambda: returned)
        assert [member.address[1] for member in door.members] == [7001]
        for link in (first, second, third):
            await link.close()


async def test_a_lease_of_somebody_else_is_not_renewed() -> None:
    async with registrar() as door:
        link = await greeted(door)
        await link.send(JOIN.encode(ME))
        assert (await link.receive()).kind is Kind.LEASE
        await link.send(JOIN.encode(msgspec.structs.replace(ME, incarnation="f" * 16)))
        with pytest.raises(RingError):
            await asyncio.wait_for(link.receive(), 5)
        assert door.members == ()


async def test_certificates_say_who_joins(tmp_path: Path) -> None:
    """Only stages of the same authority come in, under the name that their certificate has."""
    for ring in ("ours", "theirs"):
        create_authority(tmp_path / ring)
        create_node(tmp_path / ring, "coordinator", "coordinator")
        create_node(tmp_path / ring, "garage", "stage")

    def security(node: str) -> Security:
        return load_security(SecurityOptions(str(tmp_path / node)))

    tasks = []
    async with registrar(security=security("ours/coordinator")) as door:
        for node in ("ours/garage", "theirs/garage", "ours/coordinator"):
            found = Membership(
                ("127.0.0.1", door.port),
                "anything",
                "",
                7000,
                digest="",
                held=lambda: None,
                security=security(node),
            )
            tasks.append(asyncio.create_task(found.run()))
        await until(lambda: door.members)
        await asyncio.sleep(0.5)
        assert [member.name for member in door.members] == ["garage"]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_port_that_is_taken_is_said() -> None:
    async with registrar() as door:
        with pytest.raises(UsageError, match=f"stages cannot join at 127.0.0.1:{door.port}"):
            await Registrar(DIGEST).start("127.0.0.1", door.port)
