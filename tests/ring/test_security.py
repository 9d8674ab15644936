"""Who may use a stage, and which stage a coordinator uses: every refusal by its name, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import re
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import cast

import pytest
import uvloop

from longspan.errors import RingError, UsageError
from longspan.ring import security as security_module
from longspan.ring.dial import connect, dial
from longspan.ring.frame import PROTOCOL_VERSION, Frame, Kind
from longspan.ring.handshake import NONCE_BYTES, proof_of
from longspan.ring.identity import Identity, identity_of, parse_fingerprint
from longspan.ring.keys import create_authority, create_node, create_token, read_node
from longspan.ring.member_messages import JOIN, LEASE, Join
from longspan.ring.messages import Challenge, Hello, Proof, Refuse, decode, encode
from longspan.ring.registrar import Registrar
from longspan.ring.security import OPEN, Security, SecurityOptions, check_exposure, is_loopback, load_security
from longspan.ring.stage_server import StageServer
from longspan.ring.tcp import TcpLink
from tests.ring.scripted_ring import DIGEST, Coordinator, ScriptedLoader, ring_plan
from tests.ring.test_driver import truth
from tests.ring.test_stage_server import answer, hello


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority with nodes, an expired one among them, another authority, and two tokens."""
    folder = tmp_path_factory.mktemp("keys")
    for ring in ("ours", "theirs"):
        create_authority(folder / ring)
        create_node(folder / ring, "coordinator", "coordinator")
        for stage in ("first", "second"):
            create_node(folder / ring, stage, "stage")
    create_node(folder / "ours", "late", "coordinator", days=-1)
    create_node(folder / "ours", "late-stage", "stage", days=-1)
    for name in ("token", "other-token"):
        create_token(folder / name)
    # Takes our stages for what they are, and shows them a certificate of another authority.
    shutil.copytree(folder / "theirs" / "coordinator", folder / "ours" / "intruder")
    shutil.copy(folder / "ours" / "authority.pem", folder / "ours" / "intruder")
    return folder


@pytest.fixture
def named(keys: Path) -> dict[str, Security]:
    """Security of every node by name, "token" and "other-token" for those with a token only."""
    nodes = {f"{path.parent.name}/{path.name}": path for path in keys.glob("*/*") if path.is_dir()}
    made = {name: load_security(SecurityOptions(str(path))) for name, path in nodes.items()}
    for token in ("token", "other-token"):
        made[token] = load_security(SecurityOptions(token_file=str(keys / token)))
        made[f"ours/coordinator+{token}"] = load_security(
            SecurityOptions(str(keys / "ours" / "coordinator"), str(keys / token))
        )
    made["ours/first+token"] = load_security(SecurityOptions(str(keys / "ours" / "first"), str(keys / "token")))
    made["open"] = OPEN
    return made


@contextlib.asynccontextmanager
async def stage(security: Security, loader: ScriptedLoader | None = None) -> AsyncIterator[StageServer]:
    server = StageServer(loader or ScriptedLoader(), security)
    try:
        await server.start("127.0.0.1", 0)
        yield server
    finally:
        await server.close()


async def why_not(server: StageServer, security: Security, loader: ScriptedLoader | None = None) -> str:
    """How a coordinator with these keys fails at the stage. It must not have loaded anything."""
    stage_loader = cast(ScriptedLoader, server._loader)
    with pytest.raises(RingError) as caught:
        async with (
            asyncio.timeout(10),
            Coordinator(ring_plan([server.port]), loader or ScriptedLoader(), security=security),
        ):
            pytest.fail("the ring formed")
    assert stage_loader.loads == []
    return str(caught.value)


async def answers(ports: list[int], security: Security) -> bool:
    """Whether a ring forms over these stages, and gives the tokens that it should."""
    async with (
        asyncio.timeout(20),
        Coordinator(ring_plan(ports), ScriptedLoader(), security=security) as coordinator,
    ):
        given = coordinator.submit([5, 6, 7], 12)
        await coordinator.finish(10)
    return given.tokens == truth([5, 6, 7], 12)


# ------------------------------------------------------------------------------------------------- what is let in


@pytest.mark.parametrize(
    ("coordinator", "stages"),
    [
        ("ours/coordinator", ("ours/first", "ours/second")),
        ("token", ("token", "token")),
        ("ours/coordinator+token", ("ours/first+token",)),
    ],
)
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_ring_forms_over_links_that_are_closed_to_others(
    named: dict[str, Security], coordinator: str, stages: tuple[str, ...], loop: str
) -> None:
    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(stage(named[name])) for name in stages]
            for _ in range(2):
                assert await answers([server.port for server in servers], named[coordinator])

    uvloop.run(run()) if loop == "uvloop" else asyncio.run(run())


async def test_what_goes_over_a_closed_link_cannot_be_read(named: dict[str, Security]) -> None:
    seen = bytearray()
    async with stage(named["ours/first"]) as server, relay(server.port, seen) as port:
        assert await answers([port], named["ours/coordinator"])
    assert len(seen) > 2000
    for secret in (DIGEST.encode(), b"LSPN", b"coordinator", b"float32"):
        assert secret not in seen


async def test_large_frames_go_over_a_closed_link_whole_and_in_order(named: dict[str, Security]) -> None:
    async with contextlib.AsyncExitStack() as stack:
        loaders = [ScriptedLoader(width=4096, max_rows=512, exact_rows=512) for _ in range(3)]
        servers = [
            await stack.enter_async_context(stage(named[name], loader))
            for name, loader in zip(("ours/first", "ours/second"), loaders[1:], strict=True)
        ]
        async with Coordinator(
            ring_plan([server.port for server in servers], cells=600),
            loaders[0],
            security=named["ours/coordinator"],
            chunk=256,
        ) as coordinator:
            prompts = [[5 + index, *range(3, 400)] for index in range(3)]
            given = [coordinator.submit(prompt, 20) for prompt in prompts]
            await coordinator.finish(20)
    assert [each.tokens for each in given] == [truth(prompt, 20) for prompt in prompts]


# -------------------------------------------------------------------------------------------------- what is refused

REFUSALS = {
    "a wrong certificate": (
        "ours/first",
        "ours/intruder",
        "before it said a word: it does not take our certificate",
        "not of our authority",
    ),
    "an expired certificate": ("ours/first", "ours/late", "our certificate has expired", "certificate has expired"),
    "a stage with a wrong certificate": (
        "theirs/first",
        "ours/coordinator",
        "is not of our authority",
        "no TLS with",
    ),
    "a stage with an expired certificate": ("ours/late-stage", "ours/coordinator", "has expired", "no TLS with"),
    "no certificate": ("ours/first", "token", "asks for one .--keys", "the peer has no certificate"),
    "no TLS at all": ("ours/first", "open", "it may ask for --keys or --token-file", "does not speak TLS"),
    "no token": ("ours/first+token", "ours/coordinator", "refused: no token: .*--token-file", "no token"),
    "a wrong token": ("ours/first+token", "ours/coordinator+other-token", "another token than this one", "closed"),
    "a wrong token without certificates": ("token", "other-token", "another token than this one", "closed"),
    "a token for a stage without": ("ours/first", "ours/coordinator+token", "the other one without", "closed"),
    "a stage without TLS": ("open", "ours/coordinator", "no TLS with 127.0.0.1:.*", "the peer speaks TLS"),
    "a stage that gives orders": ("ours/first", "ours/second", "only that of a coordinator", "of stage second"),
    "a coordinator in a stage's place": ("ours/coordinator",) * 2 + ("a stage was expected there", "closed"),
}
"""What a stage has, what a coordinator has; what the coordinator is told, and what the stage's log says."""


@pytest.mark.parametrize(("stage_keys", "keys_there", "told", "logged"), REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_is_refused(
    named: dict[str, Security],
    stage_keys: str,
    keys_there: str,
    told: str,
    logged: str,
    loop: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    right = {"ours/first": "ours/coordinator", "ours/first+token": "ours/coordinator+token"}

    async def run() -> str:
        async with stage(named[stage_keys]) as server:
            reason = await why_not(server, named[keys_there])
            await asyncio.sleep(0.02)
            assert re.search(logged, caplog.text)
            if stage_keys in right:
                assert await answers([server.port], named[right[stage_keys]]), "service is harmed"
            return reason

    assert re.search(told, uvloop.run(run()) if loop == "uvloop" else asyncio.run(run()))


async def test_another_digest_is_refused_and_only_peers_of_the_ring_learn_ours(named: dict[str, Security]) -> None:
    async with stage(named["token"], ScriptedLoader(digest="77" * 32)) as server:
        reason = await why_not(server, named["token"], ScriptedLoader())
        assert "model mismatch" in reason and "77" * 6 in reason
        link = await connect("127.0.0.1", server.port, 5.0)
        assert named["token"].opening is not None
        await link.secure(named["token"].opening, server_side=False, seconds=5.0)
        await link.send(encode(Challenge(bytes(NONCE_BYTES), token=False)))
        assert decode(await answer(link), Refuse).digest == ""
        await link.close()


async def test_a_replayed_handshake_is_refused(named: dict[str, Security]) -> None:
    """What a peer has said once, word by word, on another connection: inside of TLS, and as bytes on the wire."""
    good = named["token"]
    assert good.opening is not None
    async with stage(good) as server:
        said: list[Challenge | Proof] = []
        for attempt in ("recorded", "replayed"):
            link = await connect("127.0.0.1", server.port, 5.0)
            await link.secure(good.opening, server_side=False, seconds=5.0)
            if attempt == "recorded":
                said.append(Challenge(b"n" * NONCE_BYTES, token=True))
            await link.send(encode(said[0]))
            given = decode(await answer(link), Proof)
            if attempt == "recorded":
                _, der = link.peer_certificate()
                said.append(Proof(b"", proof_of("client", good.token, b"n" * 32, given.nonce, b"", der)))
            await link.send(encode(said[1]))
            await link.send(encode(hello()))
            heard = await answer(link)
            if attempt == "recorded":
                assert heard.kind is Kind.READY
            else:
                assert decode(heard, Refuse).reason == "wrong token, or an old handshake sent again"
            await link.close()
        sent = bytearray()
        async with relay(server.port, sent, one_way=True) as port:
            assert await answers([port], good)
        with socket.create_connection(("127.0.0.1", server.port)) as plain:
            plain.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(plain, bytes(sent))
            got = b""
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(5):
                    while data := await loop.sock_recv(plain, 65536):
                        got += data
        assert await answers([server.port], good)


async def test_a_proof_cannot_be_passed_on_by_somebody_in_the_middle(named: dict[str, Security]) -> None:
    """He has a certificate of his own, which is not the one that the stage's proof names."""
    good, middle = named["token"], named["other-token"]
    assert good.opening is not None and middle.accepting is not None
    async with stage(good) as server:
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[None]] = []

        async def pass_on(near: TcpLink) -> None:
            assert middle.accepting is not None and good.opening is not None
            await near.secure(middle.accepting, server_side=True, seconds=5.0)
            far = await connect("127.0.0.1", server.port, 5.0)
            await far.secure(good.opening, server_side=False, seconds=5.0)
            with contextlib.suppress(RingError):
                await far.send(await near.receive())
                await near.send(await far.receive())
                await far.send(await near.receive())
            await far.close()
            await near.close()

        listener = await loop.create_server(
            lambda: TcpLink(lambda link: tasks.append(loop.create_task(pass_on(link)))), "127.0.0.1", 0
        )
        with pytest.raises(RingError, match="another token than this one"):
            await dial("127.0.0.1", listener.sockets[0].getsockname()[1], 5.0, good, "stage")
        listener.close()
        await asyncio.gather(*tasks)


async def test_the_stage_checks_the_token_in_constant_time_and_itself(named: dict[str, Security]) -> None:
    """A client that does not care what the stage proves is still refused."""
    good = named["token"]
    assert good.opening is not None
    async with stage(good) as server:
        link = await connect("127.0.0.1", server.port, 5.0)
        await link.secure(good.opening, server_side=False, seconds=5.0)
        await link.send(encode(Challenge(b"n" * NONCE_BYTES, token=True)))
        decode(await answer(link), Proof)
        await link.send(encode(Proof(b"", b"\0" * 32)))
        assert decode(await answer(link), Refuse).reason == "wrong token, or an old handshake sent again"
        await link.close()


@pytest.mark.parametrize("nonce", [b"", b"x", b"x" * 31, b"x" * 60_000])
async def test_a_random_number_of_another_length_is_refused(named: dict[str, Security], nonce: bytes) -> None:
    good = named["token"]
    assert good.opening is not None
    async with stage(good) as server:
        link = await connect("127.0.0.1", server.port, 5.0)
        await link.secure(good.opening, server_side=False, seconds=5.0)
        await link.send(encode(Challenge(nonce, token=True)))
        assert f"a random number of {len(nonce)} bytes" in decode(await answer(link), Refuse).reason
        await link.close()


async def test_a_pin_lets_in_only_what_it_names(keys: Path, named: dict[str, Security]) -> None:
    right = read_node(keys / "ours" / "coordinator").identity.fingerprint
    wrong = read_node(keys / "theirs" / "coordinator").identity.fingerprint
    folder = str(keys / "ours" / "first")
    async with stage(load_security(SecurityOptions(folder, pins=(f"SHA256:{right.upper()}",)))) as server:
        assert await answers([server.port], named["ours/coordinator"])
    async with stage(load_security(SecurityOptions(folder, pins=(wrong,)))) as server:
        assert "none of those that --pin allows" in await why_not(server, named["ours/coordinator"])
    coordinator = str(keys / "ours" / "coordinator")
    async with stage(named["ours/first"]) as server:
        pinned = load_security(SecurityOptions(coordinator, pins=(wrong,)))
        assert "certificate of stage first" in await why_not(server, pinned)


async def test_only_a_stage_feeds_the_next_one(named: dict[str, Security]) -> None:
    async with stage(named["ours/second"]) as server:
        link = await dial("127.0.0.1", server.port, 5.0, named["ours/coordinator"], "stage")
        await link.send(encode(Hello(PROTOCOL_VERSION, "0", "upstream", "ring", DIGEST, 0)))
        assert "only that of a stage may ask for this" in decode(await answer(link), Refuse).reason
        await link.close()


# ---------------------------------------------------------------------------------------------- strangers on a port


async def connected_to(port: int) -> socket.socket:
    plain = socket.socket()
    plain.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", port))
    return plain


@pytest.mark.parametrize("kind", ["open", "token", "ours/first"])
async def test_a_port_scan_and_a_slow_loris_leave_the_stage_unharmed(
    named: dict[str, Security], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some connect and hang up, some say nothing, some one byte at a time, some a whole handshake's beginning."""
    good = named["ours/coordinator" if kind == "ours/first" else kind]
    async with stage(named[kind]) as server:
        for number in range(150):
            scan = await connected_to(server.port)
            if number % 2:
                scan.send(b"\x16\x03\x01"[: number % 4] or b"GET / HTTP/1.0\r\n\r\n")
            scan.close()
        idle = [await connected_to(server.port) for _ in range(150)]
        try:
            going = True

            async def drip() -> None:
                beginning = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)
                for byte in beginning:
                    if not going:
                        return
                    for connection in idle:
                        with contextlib.suppress(OSError):
                            connection.send(bytes([byte]), socket.MSG_DONTWAIT)
                    await asyncio.sleep(0.01)

            dripping = asyncio.create_task(drip())
            await asyncio.sleep(0.1)
            assert await answers([server.port], good)
            assert len(server._strangers) <= 64
            going = False
            await dripping
        finally:
            for connection in idle:
                connection.close()
        assert await answers([server.port], good)


async def test_a_port_scan_and_a_slow_loris_leave_the_coordinators_port_unharmed(
    named: dict[str, Security],
) -> None:
    door = Registrar(DIGEST, named["token"])
    await door.start("127.0.0.1", 0)
    idle: list[socket.socket] = []
    try:
        for number in range(100):
            scan = await connected_to(door.port)
            scan.send(b"\x16\x03\x01GET"[: 1 + number % 6])
            scan.close()
        idle += [await connected_to(door.port) for _ in range(100)]
        for connection in idle:
            with contextlib.suppress(OSError):
                connection.send(b"\x16", socket.MSG_DONTWAIT)
        link = await dial("127.0.0.1", door.port, 5.0, named["token"], "coordinator")
        await link.send(encode(Hello(PROTOCOL_VERSION, "0", "member", "", "")))
        await link.send(JOIN.encode(Join("attic", "0123456789abcdef", "127.0.0.1", 7000)))
        LEASE.decode(await answer(link))
        assert [member.name for member in door.members] == ["attic"]
        await link.close()
    finally:
        for connection in idle:
            connection.close()
        await door.close()
        await asyncio.sleep(0.02)


async def test_a_handshake_that_does_not_go_on_is_ended(
    named: dict[str, Security], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longspan.ring.stage_server.HELLO_SECONDS", 0.3)
    good = named["token"]
    assert good.opening is not None
    async with stage(good) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as silent:
            silent.setblocking(False)
            async with asyncio.timeout(3):
                with contextlib.suppress(ConnectionError):
                    assert await asyncio.get_running_loop().sock_recv(silent, 1) == b""
        link = await connect("127.0.0.1", server.port, 5.0)
        await link.secure(good.opening, server_side=False, seconds=5.0)
        with pytest.raises(RingError, match=r"closed by the peer|lost"):
            await answer(link)
        await link.close()
        assert not server._strangers


async def test_a_peer_that_does_not_finish_its_handshake_is_named(named: dict[str, Security]) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        with pytest.raises(RingError, match=rf"127.0.0.1:{port} did not finish its handshake within 0.3 s"):
            await dial("127.0.0.1", port, 0.3, named["ours/coordinator"], "stage")


# -------------------------------------------------------------------------------------------- files, words, secrets


def test_what_a_person_gives_is_checked(keys: Path, tmp_path: Path) -> None:
    (tmp_path / "short").write_text("password")
    (tmp_path / "short").chmod(0o600)
    (tmp_path / "shown").write_text("x" * 40)
    (tmp_path / "shown").chmod(0o644)
    for options, message in (
        (
            SecurityOptions(str(tmp_path)),
            "directory of a node's keys: node.pem and node.key and authority",
        ),
        (SecurityOptions(token_file=str(tmp_path / "nothing")), "cannot read the token"),
        (SecurityOptions(token_file=str(tmp_path / "short")), "has 8 bytes; expected 16 to 4096"),
        (SecurityOptions(token_file=str(tmp_path / "shown")), "every user of this machine can read .*chmod 600"),
        (SecurityOptions(pins=("ab" * 32,)), "only --keys asks for any"),
        (SecurityOptions(str(keys / "ours" / "first"), pins=("abc",)), "'abc' is not the fingerprint"),
    ):
        with pytest.raises(UsageError, match=message):
            load_security(options)


def test_keys_that_do_not_belong_together_are_refused(keys: Path, tmp_path: Path) -> None:
    ours, theirs = keys / "ours" / "first", keys / "theirs" / "first"
    for name, source in (("node.pem", ours), ("authority.pem", ours), ("node.key", theirs)):
        (tmp_path / name).write_bytes((source / name).read_bytes())
        (tmp_path / name).chmod(0o600)
    with pytest.raises(UsageError, match="cannot be used"):
        load_security(SecurityOptions(str(tmp_path)))
    (tmp_path / "node.pem").write_text("once upon a time")
    with pytest.raises(UsageError, match="no certificate in PEM form"):
        read_node(tmp_path)
    (tmp_path / "node.pem").write_bytes((keys / "ours" / "authority.pem").read_bytes())
    with pytest.raises(UsageError, match="not the certificate of a node"):
        read_node(tmp_path)


def test_an_authority_is_not_overwritten_and_names_stay_in_its_directory(keys: Path) -> None:
    with pytest.raises(UsageError, match="holds an authority already"):
        create_authority(keys / "ours")
    for name in ("../elsewhere", "", ".hidden", "a/b", "x" * 64):
        with pytest.raises(UsageError, match="cannot name a node"):
            create_node(keys / "ours", name, "stage")
    with pytest.raises(UsageError, match="cannot read"):
        create_node(keys / "ours" / "first", "third", "stage")


def test_secrets_are_for_one_user_and_in_no_text(keys: Path, named: dict[str, Security]) -> None:
    for path in (*keys.glob("*/*.key"), *keys.glob("*/*/*.key"), keys / "token"):
        assert path.stat().st_mode & 0o077 == 0, path
    token = (keys / "token").read_text().strip()
    assert token not in repr(named["token"]) and token not in str(dataclasses.replace(named["token"]))
    assert "PRIVATE KEY" not in repr(read_node(keys / "ours" / "first"))


async def test_no_log_line_holds_a_secret(
    keys: Path, named: dict[str, Security], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with stage(named["token"]) as server:
        assert await answers([server.port], named["token"])
        await why_not_quietly(server, named["other-token"])
    for name in ("token", "other-token"):
        assert (keys / name).read_text().strip() not in caplog.text
    assert caplog.text


async def why_not_quietly(server: StageServer, security: Security) -> None:
    with contextlib.suppress(RingError):
        await dial("127.0.0.1", server.port, 5.0, security, "stage")


def test_an_old_certificate_is_told_at_the_start(
    keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load_security(SecurityOptions(str(keys / "ours" / "late")))
    assert "has expired: no peer will take it" in caplog.text
    caplog.clear()
    create_authority(tmp_path)
    create_node(tmp_path, "soon", "stage", days=10)
    load_security(SecurityOptions(str(tmp_path / "soon")))
    assert "expires in 9 days" in caplog.text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "stage.example", "10.0.0.1"])
def test_open_links_to_other_machines_are_refused_unless_somebody_insists(
    host: str, named: dict[str, Security], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UsageError, match=rf"will not listen on {host}, .*--keys .*--token-file .*--insecure"):
        check_exposure(["127.0.0.1", host], OPEN, insecure=False, what="listen on")
    assert not caplog.text
    check_exposure([host], OPEN, insecure=True, what="listen on")
    assert "INSECURE" in caplog.text and host in caplog.text
    caplog.clear()
    check_exposure([host], named["token"], insecure=False, what="listen on")
    assert not caplog.text


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_this_machine_needs_nothing(host: str) -> None:
    assert is_loopback(host)
    check_exposure([host], OPEN, insecure=False, what="listen on")


def test_certificates_that_say_other_things_are_nobody() -> None:
    def named_by(*names: tuple[str, str]) -> Identity | None:
        return identity_of({"subjectAltName": names}, b"der")

    assert named_by(("URI", "longspan://stage/first")) is not None
    for name in (
        ("DNS", "longspan://stage/first"),
        ("URI", "longspan://king/first"),
        ("URI", "longspan://stage/../first"),
        ("URI", "https://stage/first"),
    ):
        assert named_by(name) is None
    assert parse_fingerprint("SHA256:" + ":".join(["AB"] * 32)) == "ab" * 32


def test_the_handshake_has_a_bound_in_time() -> None:
    assert security_module.HANDSHAKE_SECONDS <= 10


# ------------------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def relay(target: int, seen: bytearray, *, one_way: bool = False) -> AsyncIterator[int]:
    """A port whose connections go on to another one; `seen` gets all bytes, or those towards the target only."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: bool) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if record:
                    seen.extend(data)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(copy(reader, far_writer, True), copy(far_reader, writer, not one_way))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("factory", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def test_a_peer_may_begin_before_the_stage_has_looked(
    factory: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    """The first bytes of TLS can be there before any task of the connection has run."""
    create_authority(tmp_path)
    for name in ("coordinator", "stage"):
        create_node(tmp_path, name, name)
    accepting = load_security(SecurityOptions(str(tmp_path / "stage"))).accepting
    opening = load_security(SecurityOptions(str(tmp_path / "coordinator"))).opening
    assert accepting is not None and opening is not None

    async def meet() -> bytes:
        loop = asyncio.get_running_loop()
        connected: asyncio.Future[TcpLink] = loop.create_future()
        server = await loop.create_server(lambda: TcpLink(connected.set_result, expects_tls=True), "127.0.0.1", 0)
        link = await connect("127.0.0.1", server.sockets[0].getsockname()[1], 5.0)
        client = asyncio.ensure_future(link.secure(opening, server_side=False, seconds=5.0))
        accepted = await connected
        while not accepted.statistics.bytes_received:  # noqa: ASYNC110 - what is waited for is a peer
            await asyncio.sleep(0.01)
        await accepted.secure(accepting, server_side=True, seconds=5.0)
        await client
        await link.send(Frame(Kind.PING, b"early"))
        frame = await accepted.receive()
        for end in (link, accepted):
            await end.close()
        server.close()
        await server.wait_closed()
        return bytes(frame.header)

    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(meet()) == b"early"
