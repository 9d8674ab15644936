"""A stage against strangers, wrong peers, absurd requests and the death of its coordinators."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import numpy as np
import pytest

from longspan.errors import RingError, UsageError
from longspan.ring import stage_server
from longspan.ring.dial import connect
from longspan.ring.frame import MAGIC, PREFIX, PROTOCOL_VERSION, Frame, Kind
from longspan.ring.messages import (
    Assignment,
    Failed,
    Hello,
    IterationHeader,
    Ping,
    Progress,
    Ready,
    Refuse,
    Welcome,
    decode,
    encode,
)
from longspan.ring.stage_server import MAX_STRANGERS, StageServer, serve_stage
from longspan.ring.stage_session import StageSession
from longspan.ring.tcp import TcpLink
from longspan.runtime.base import StageRuntime
from longspan.runtime.scripted import RaiseError
from longspan.sampling.parameters import SamplingParameters
from longspan.schedule.span import Drop, Iteration, IterationResult, Phase, SlotSampling, Span
from tests.ring.scripted_ring import (
    CELLS,
    DIGEST,
    LAYERS,
    SLOTS,
    WIDTH,
    Coordinator,
    ScriptedLoader,
    ring_plan,
    stage_servers,
)
from tests.ring.test_messages import iteration_frame

ALONE = Assignment(0, 1, 0, LAYERS, LAYERS, None, SLOTS, CELLS, "float32")
LAST = Assignment(1, 2, 3, LAYERS, LAYERS, None, SLOTS, CELLS, "float32")


def hello(assignment: Assignment | None = ALONE, **changes: Any) -> Hello:
    given = Hello(PROTOCOL_VERSION, "0.0.9", "coordinator", "ring", DIGEST, assignment=assignment)
    return msgspec.structs.replace(given, **changes)


@pytest.fixture
def loader() -> ScriptedLoader:
    return ScriptedLoader()


@pytest.fixture
async def server(loader: ScriptedLoader) -> AsyncIterator[StageServer]:
    async with stage_servers(loader) as (only,):
        yield only


@contextlib.asynccontextmanager
async def link_to(server: StageServer) -> AsyncIterator[TcpLink]:
    link = await connect("127.0.0.1", server.port, 5.0)
    try:
        yield link
    finally:
        await link.close()


async def answer(link: TcpLink) -> Frame:
    """The next frame that is no progress."""
    async with asyncio.timeout(5):
        while (frame := await link.receive()).kind is Kind.PROGRESS:
            decode(frame, Progress)
    return frame


async def refusal(server: StageServer, first: Frame) -> Refuse:
    async with link_to(server) as link:
        await link.send(first)
        refused = decode(await answer(link), Refuse)
        with pytest.raises(RingError):  # and hangs up
            await answer(link)
    return refused


@contextlib.asynccontextmanager
async def ring_of_one(server: StageServer, **changes: Any) -> AsyncIterator[TcpLink]:
    async with link_to(server) as link:
        await link.send(encode(hello(**changes)))
        decode(await answer(link), Ready)
        link.open_payloads()
        yield link


async def serves(server: StageServer, loader: ScriptedLoader) -> bool:
    """A whole ring forms with this stage and answers."""
    async with Coordinator(ring_plan([server.port]), loader) as coordinator:
        given = coordinator.submit([5, 6, 7], 4)
        await coordinator.finish(5)
    return given.ended == "length"


# ----------------------------------------------------------------------------------------------------- strangers


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes(range(256)) * 10,
        PREFIX.pack(MAGIC, PROTOCOL_VERSION, Kind.HELLO, 0, 2**32 - 1, 2**63),
        PREFIX.pack(MAGIC, PROTOCOL_VERSION, Kind.ITERATION, 0, 10, 1 << 20) + bytes(1 << 20),
    ],
    ids=["nothing", "http", "garbage", "absurd lengths", "tensors before a handshake"],
)
async def test_a_stranger_disturbs_nobody(server: StageServer, loader: ScriptedLoader, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as plain:
        plain.setblocking(False)
        with contextlib.suppress(ConnectionError):
            await asyncio.get_running_loop().sock_sendall(plain, sent)
        assert await serves(server, loader)


async def test_half_a_hello_disturbs_nobody(server: StageServer, loader: ScriptedLoader) -> None:
    data = b"".join(bytes(part) for part in encode(hello()).parts())
    with socket.create_connection(("127.0.0.1", server.port)) as plain:
        plain.sendall(data[: len(data) // 2])
        assert await serves(server, loader)


async def test_a_crowd_that_only_connects_keeps_nobody_out(server: StageServer, loader: ScriptedLoader) -> None:
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
    try:
        assert await serves(server, loader)
        assert len(server._strangers) <= MAX_STRANGERS
        assert len(server._tasks) <= MAX_STRANGERS
    finally:
        for connection in idle:
            connection.close()


async def test_a_stranger_is_sent_away_after_a_while(
    server: StageServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stage_server, "HELLO_SECONDS", 0.05)
    async with link_to(server) as link:
        with pytest.raises(RingError, match="closed by the peer"):
            await answer(link)
    assert "no Hello within 0.05 s" in caplog.text


@pytest.mark.parametrize("kind", sorted(set(Kind) - {Kind.HELLO}))
async def test_a_first_frame_that_is_no_hello_is_refused(server: StageServer, kind: Kind) -> None:
    refused = await refusal(server, Frame(kind, b"\x90"))
    assert refused.reason == f"expected a HELLO frame, got {kind.name}"


@pytest.mark.parametrize("header", [b"", b"\xc1", b"\x80", b"\x90", msgspec.msgpack.encode({"protocol": "new"})])
async def test_a_hello_that_cannot_be_read_is_refused(server: StageServer, header: bytes) -> None:
    refused = await refusal(server, Frame(Kind.HELLO, header))
    assert refused.reason.startswith("the HELLO frame does not hold")
    assert (refused.protocol, refused.digest) == (PROTOCOL_VERSION, DIGEST)


# --------------------------------------------------------------------------------------------------- wrong peers


async def test_another_protocol_version_is_told_both_versions_and_both_models(server: StageServer) -> None:
    """Also when the rest of its Hello means something else by then."""
    later = {"protocol": 7, "version": "3.1.4", "digest": "77" * 32, "role": 4, "assignment": ["changed"]}
    header = msgspec.msgpack.encode(later)
    async with link_to(server) as link:
        assert link._transport is not None
        link._transport.write(PREFIX.pack(MAGIC, 7, Kind.HELLO, 0, len(header), 0) + header)
        refused = decode(await answer(link), Refuse)
    for part in (
        f"speaks {PROTOCOL_VERSION} ",
        "peer speaks 7 ",
        "Longspan 3.1.4",
        DIGEST[:12],
        "77" * 6,
        "Install",
    ):
        assert part in refused.reason
    assert (refused.protocol, refused.digest) == (PROTOCOL_VERSION, DIGEST)


async def test_another_model_is_told_both_digests(server: StageServer) -> None:
    refused = await refusal(server, encode(hello(digest="77" * 32)))
    for part in ("model mismatch", DIGEST[:12], "77" * 6, "same model file or layer package"):
        assert part in refused.reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"role": "admirer"}, "unknown role 'admirer'"),
        ({"assignment": None}, "no assignment"),
    ],
)
async def test_a_role_that_does_not_exist(server: StageServer, changes: dict[str, Any], reason: str) -> None:
    assert reason in (await refusal(server, encode(hello(**changes)))).reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"layers": 7}, "layers 0-6 of 7 cannot be served, this model has layers 0-6"),
        ({"end": 7}, "layers 0-7 of 6 cannot be served"),
        ({"start": -1}, "layers -1-6 of 6 cannot be served"),
        ({"start": 6}, "layers 6-6 of 6 cannot be served"),
        ({"stage": -1}, "stage -1 of 1 does not exist"),
        ({"stage": 1}, "stage 1 of 1 does not exist"),
        ({"stages": 2**40}, "stage 0 of 1099511627776 does not exist: this model has 6 layers"),
        ({"start": 3}, "stage 0 cannot start at layer 3"),
        ({"stage": 1, "stages": 2}, "stage 1 cannot start at layer 0"),
        ({"end": 3}, "only the stage with the last layer may be the last"),
        ({"stages": 2}, "only the stage with the last layer may be the last"),
        ({"next_address": ("h", 1)}, "only the stage with the last layer may be the last"),
        ({"stages": 2, "end": 3, "next_address": ("h", 70000)}, "h:70000 is not the address of a next stage"),
        ({"stages": 2, "end": 3, "next_address": ("", 7000)}, ":7000 is not the address"),
        ({"stages": 2, "end": 3, "next_address": ("h" * 300, 7000)}, "is not the address"),
        ({"slots": 0}, "0 slots of 256 positions are out of range: at most 256 slots"),
        ({"slots": 257}, "257 slots of 256 positions are out of range"),
        ({"cells_per_slot": 0}, "4 slots of 0 positions"),
        ({"cells_per_slot": 2**24 + 1}, "4 slots of 16777217 positions"),
        ({"slots": 256, "cells_per_slot": 2**23}, "2147483647 positions together"),
        ({"dtype": "int4"}, "unknown activation type 'int4', expected one of float32, float16"),
        ({"next_delay_ms": -1.0}, "an emulated delay of -1.0 ms"),
        ({"return_delay_ms": 1e9}, "an emulated delay of 1000000000.0 ms"),
        ({"return_delay_ms": math.nan}, "an emulated delay of nan ms"),
    ],
)
async def test_an_assignment_that_cannot_be_done(
    server: StageServer, loader: ScriptedLoader, changes: dict[str, Any], reason: str
) -> None:
    refused = await refusal(server, encode(hello(msgspec.structs.replace(ALONE, **changes))))
    assert reason in refused.reason
    assert not loader.loads


async def test_a_type_of_activations_that_this_model_does_not_bear(
    server: StageServer, loader: ScriptedLoader
) -> None:
    loader.dtypes = ("float32",)
    refused = await refusal(server, encode(hello(msgspec.structs.replace(ALONE, dtype="float16"))))
    assert "mixture-of-experts" in refused.reason
    assert "use float32" in refused.reason


# ------------------------------------------------------------------------------------------------- coordinators


async def test_one_coordinator_at_a_time(server: StageServer, loader: ScriptedLoader) -> None:
    async with ring_of_one(server) as first:
        refused = await refusal(server, encode(hello(ring="other")))
        assert "already serves another coordinator" in refused.reason
        await first.send(encode(Ping(3)))
        assert (await answer(first)).kind is Kind.PONG
    assert await serves(server, loader)


async def test_the_next_coordinator_finds_the_layers_loaded(server: StageServer, loader: ScriptedLoader) -> None:
    for _ in range(3):
        assert await serves(server, loader)
    assert len(loader.loads) == 1
    async with ring_of_one(server, assignment=msgspec.structs.replace(ALONE, slots=2)):
        assert len(loader.loads) == 2
        assert loader.open == 1, "what was held before is released first"


async def test_a_coordinator_that_dies_leaves_a_stage_that_listens(
    server: StageServer, loader: ScriptedLoader
) -> None:
    """In the middle of an iteration, without a goodbye."""
    async with ring_of_one(server) as link:
        for number in range(3):
            await link.send(iteration_of(number, [5] * 30, start=0))
        link.abort()
    async with asyncio.timeout(5):
        assert await serves(server, loader)
    assert len(loader.loads) == 1


async def test_a_coordinator_that_dies_while_the_stage_loads(
    server: StageServer, loader: ScriptedLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading = asyncio.Event()
    loop = asyncio.get_running_loop()
    make = loader.make

    def slow(assignment: Assignment) -> StageRuntime:
        loop.call_soon_threadsafe(loading.set)
        time.sleep(0.2)
        return make(assignment)

    monkeypatch.setattr(loader, "make", slow)
    async with link_to(server) as link:
        await link.send(encode(hello()))
        await loading.wait()
    async with asyncio.timeout(5):
        assert await serves(server, loader)
    assert len(loader.loads) == loader.open == 1, "what was being loaded is taken over"


async def test_closing_the_stage_releases_the_layers(loader: ScriptedLoader) -> None:
    async with stage_servers(loader) as (server,):
        async with ring_of_one(server):
            pass
        assert loader.open == 1
    assert loader.open == 0


async def test_a_connection_that_comes_while_the_stage_closes_is_closed(server: StageServer) -> None:
    """Accepted by the system before, handed over after: nobody would ever answer it."""
    loop = asyncio.get_running_loop()
    theirs, ours = socket.socketpair()
    with theirs:
        theirs.setblocking(False)
        closing = asyncio.create_task(server.close())
        await asyncio.sleep(0)
        await loop.connect_accepted_socket(lambda: TcpLink(server._on_connected), ours)
        assert await asyncio.wait_for(loop.sock_recv(theirs, 1), 5) == b""
        await closing
    assert not server._tasks


async def test_closing_the_stage_ends_its_ring(loader: ScriptedLoader) -> None:
    async with stage_servers(loader) as (server,), ring_of_one(server) as link:
        await server.close()
        with pytest.raises(RingError):
            await answer(link)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RingError("the disk is full"), "the disk is full"),
        (MemoryError("no memory"), "MemoryError: no memory"),
    ],
)
async def test_layers_that_cannot_be_loaded(
    server: StageServer, loader: ScriptedLoader, error: Exception, reason: str
) -> None:
    loader.load_error = error
    async with link_to(server) as link:
        await link.send(encode(hello()))
        assert decode(await answer(link), Failed) == Failed(0, reason)
    loader.load_error = None
    assert await serves(server, loader)


# ------------------------------------------------------------------------------------------------------ upstream


async def test_a_stage_of_another_ring_is_refused(server: StageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_server, "CONNECT_SECONDS", 0.1)
    async with ring_of_one(server, assignment=LAST, ring="ours"):
        refused = await refusal(server, encode(hello(None, role="upstream", ring="theirs", stage=0)))
        assert refused.reason == "no coordinator has started ring theirs here"


@pytest.mark.parametrize(("stage", "reason"), [(1, "stage 1 cannot feed stage 1"), (-1, "stage -1 cannot feed")])
async def test_a_stage_that_is_not_the_one_before_is_refused(server: StageServer, stage: int, reason: str) -> None:
    async with ring_of_one(server, assignment=LAST):
        assert reason in (await refusal(server, encode(hello(None, role="upstream", stage=stage)))).reason


async def test_one_stage_before_at_a_time(server: StageServer) -> None:
    async with ring_of_one(server, assignment=LAST), link_to(server) as link:
        await link.send(encode(hello(None, role="upstream", stage=0)))
        assert decode(await answer(link), Welcome) == Welcome(1)
        refused = await refusal(server, encode(hello(None, role="upstream", stage=0)))
        assert "fed by another stage 0 already" in refused.reason


async def test_a_stage_that_calls_before_the_coordinator_waits(server: StageServer) -> None:
    async with link_to(server) as link:
        await link.send(encode(hello(None, role="upstream", stage=0)))
        await asyncio.sleep(0.05)
        async with ring_of_one(server, assignment=LAST):
            assert decode(await answer(link), Welcome) == Welcome(1)


async def test_a_stage_that_calls_as_its_ring_ends_is_hung_up_on(
    server: StageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach = StageSession.attach

    def ending(session: StageSession, link: TcpLink) -> None:
        session.end("over")
        attach(session, link)

    monkeypatch.setattr(StageSession, "attach", ending)
    async with ring_of_one(server, assignment=LAST), link_to(server) as link:
        await link.send(encode(hello(None, role="upstream", stage=0)))
        assert decode(await answer(link), Welcome) == Welcome(1)
        with pytest.raises(RingError, match=r"closed by the peer|lost"):
            await answer(link)


async def test_the_loss_of_the_stage_before_is_blamed_on_it(server: StageServer) -> None:
    async with ring_of_one(server, assignment=LAST) as control:
        async with link_to(server) as link:
            await link.send(encode(hello(None, role="upstream", stage=0)))
            decode(await answer(link), Welcome)
        failed = decode(await answer(control), Failed)
    assert failed.stage == 0
    assert "its link to stage 1 has ended" in failed.reason


@pytest.mark.parametrize("answers", ["nobody", "refused", "something else", "silence"])
async def test_a_next_stage_that_cannot_be_had_is_named(
    server: StageServer, answers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longspan.ring.next_stage.CONNECT_SECONDS", 0.3)
    async with stage_servers(ScriptedLoader(digest="77" * 32)) as (other,):
        port, expected = {
            "nobody": (1, "stage 0 has no way to stage 1: cannot reach 127.0.0.1:1: Connection refused"),
            "refused": (other.port, "does not take the link of stage 0: refused: model mismatch"),
            "something else": (server.port, "does not take the link of stage 0: refused: stage 0 cannot feed"),
            "silence": (other.port, "does not take the link of stage 0: no answer within 0.3 s"),
        }[answers]
        if answers == "silence":
            monkeypatch.setattr(other, "_on_connected", lambda link: None)
        first = Assignment(0, 2, 0, 3, LAYERS, ("127.0.0.1", port), SLOTS, CELLS, "float32")
        async with link_to(server) as link:
            await link.send(encode(hello(first)))
            failed = decode(await answer(link), Failed)
    assert failed.stage == 1
    assert expected in failed.reason


# ------------------------------------------------------------------------------------------------- on a live ring


def iteration_of(number: int, tokens: list[int], *, start: int = 0, **changes: Any) -> Frame:
    span = Span(1, 0, 0, start, tuple(tokens), Phase.PREFILL, (len(tokens) - 1,))
    return frame_of(Iteration(number, (), (), (msgspec.structs.replace(span, **changes),)))


def frame_of(iteration: Iteration) -> Frame:
    header = IterationHeader(iteration, iteration.rows, WIDTH, "float32")
    payload = np.zeros((iteration.rows, WIDTH), np.float32).tobytes()
    return Frame(Kind.ITERATION, msgspec.msgpack.encode(header), payload)


SPAN = Span(1, 0, 0, 0, (5,), Phase.PREFILL)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (iteration_frame(), f"announces 6 rows of width 3 for 6 tokens; this model's width is {WIDTH}"),
        (iteration_of(1, [5] * 65), "65 rows in one iteration, this stage takes at most 64"),
        (iteration_of(1, [5], slot=SLOTS), f"slot {SLOTS} does not exist, this stage has slots 0 to {SLOTS - 1}"),
        (iteration_of(1, [5], slot=-1), "slot -1 does not exist"),
        (iteration_of(1, [5], start=-3), "starts at position -3"),
        (iteration_of(1, [-5]), "negative token"),
        (iteration_of(1, [5], sample_rows=(1,)), "samples row 1 of 1"),
        (iteration_of(1, [5, 6], parents=(-1,)), "1 parents for 2 nodes"),
        (frame_of(Iteration(1, (Drop(0),) * 5000, (), (SPAN,))), "5000 operations in one iteration, at most 4096"),
        (frame_of(Iteration(1, (Drop(2**40),), (), (SPAN,))), "slot 1099511627776 does not exist"),
        (frame_of(Iteration(1, (), (), (SPAN, SPAN))), "slot 0 after slot 0; slots must ascend"),
        (Frame(Kind.ITERATION, b"junk"), "the ITERATION frame does not hold IterationHeader"),
        (Frame(Kind.RESULT, b""), "unexpected RESULT frame"),
        (Frame(Kind.PING, b""), "the PING frame does not hold Ping"),
    ],
)
async def test_an_absurd_frame_ends_the_ring_and_the_stage_lives_on(
    server: StageServer, loader: ScriptedLoader, frame: Frame, reason: str
) -> None:
    async with ring_of_one(server) as link:
        await link.send(iteration_of(0, [5, 6]))
        assert not decode(await answer(link), IterationResult).failures
        await link.send(frame)
        failed = decode(await answer(link), Failed)
        assert failed.stage == 0
        assert reason in failed.reason
        with pytest.raises(RingError):
            await answer(link)
    assert await serves(server, loader)
    assert len(loader.loads) == 1, "nothing was changed, so nothing has to be loaded again"


async def test_a_frame_too_large_ends_the_ring_and_the_stage_lives_on(
    server: StageServer, loader: ScriptedLoader
) -> None:
    async with ring_of_one(server) as link:
        assert link._transport is not None
        link._transport.write(PREFIX.pack(MAGIC, PROTOCOL_VERSION, Kind.ITERATION, 0, 2**31, 0))
        with pytest.raises(RingError):
            await answer(link)
    assert await serves(server, loader)


async def test_a_frame_that_comes_too_early_ends_the_ring(server: StageServer, loader: ScriptedLoader) -> None:
    async with link_to(server) as link:
        await link.send(encode(hello()))
        await link.send(Frame(Kind.ITERATION, b"x"))
        failed = decode(await answer(link), Failed)
    assert "before this stage was ready" in failed.reason
    assert await serves(server, loader)


async def test_a_runtime_that_breaks_is_loaded_anew(server: StageServer, loader: ScriptedLoader) -> None:
    """Nobody knows what its slots hold."""
    loader.make = ScriptedLoader(faults=[RaiseError(1)]).make
    async with ring_of_one(server) as link:
        await link.send(iteration_of(0, [5, 6]))
        await answer(link)
        await link.send(iteration_of(1, [5], start=2))
        assert decode(await answer(link), Failed) == Failed(0, "RuntimeError: scripted fault")
    loader.make = ScriptedLoader().make
    assert await serves(server, loader)
    assert len(loader.loads) == 2


async def test_sampling_state_is_taken_with_the_iteration(server: StageServer) -> None:
    """Values that no coordinator of ours sends end the ring, not the stage."""
    absurd = SamplingParameters(logit_bias=((10**9, 1.0),))
    async with ring_of_one(server) as link:
        iteration = Iteration(1, (), (SlotSampling(0, absurd),), (msgspec.structs.replace(SPAN, sample_rows=(0,)),))
        await link.send(frame_of(iteration))
        assert "logit_bias names token 1000000000" in decode(await answer(link), Failed).reason
    async with ring_of_one(server):
        pass


# ----------------------------------------------------------------------------------------------------- the port


async def test_a_port_in_use_is_said(server: StageServer, loader: ScriptedLoader) -> None:
    second = StageServer(loader)
    with pytest.raises(UsageError, match=rf"cannot listen on 127.0.0.1:{server.port}: .*in use.*choose another"):
        await second.start("127.0.0.1", server.port)
    await second.close()


@pytest.mark.parametrize("host", ["192.0.2.1", "a..b", "no-such-host.invalid"])
async def test_an_address_that_is_not_ours_is_said(loader: ScriptedLoader, host: str) -> None:
    with pytest.raises(UsageError, match=f"cannot listen on {host}:7001"):
        await StageServer(loader).start(host, 7001)


async def test_serves_until_cancelled(loader: ScriptedLoader) -> None:
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_stage(loader, "127.0.0.1", 0, port.set_result))
    link = await connect("127.0.0.1", await port, 5.0)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    with pytest.raises(RingError):
        await answer(link)
    await link.close()


async def test_a_coordinator_that_comes_again_takes_the_place_of_its_ghost(
    server: StageServer, loader: ScriptedLoader
) -> None:
    """Its old link may hang for minutes before anybody notices that nothing comes through any more."""
    async with ring_of_one(server, ring="aabb-1") as ghost:
        for other in ("ccdd-1", "aabbcc-1", "aab-1"):
            refused = await refusal(server, encode(hello(ring=other)))
            assert "already serves another coordinator" in refused.reason
        async with ring_of_one(server, ring="aabb-2"):
            assert "has begun ring aabb-2" in decode(await answer(ghost), Failed).reason
    assert len(loader.loads) == 1
