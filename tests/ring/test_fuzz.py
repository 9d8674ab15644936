"""Frames and handshakes that are nearly right, against every parser, a live stage and a live coordinator.

They may be refused, never more: no exception of another kind, nothing allocated above its bound, no endless wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import pytest

from longspan.errors import LongspanError, RingError
from longspan.ring import stage_client
from longspan.ring.artifact_messages import CHUNK, WANT, Chunk, Want
from longspan.ring.assignment import assignment_refusal
from longspan.ring.dial import connect
from longspan.ring.frame import MAX_HANDSHAKE_HEADER_BYTES, PROTOCOL_VERSION, Frame, Kind
from longspan.ring.frame_reader import COMMON_BYTES
from longspan.ring.keys import create_token
from longspan.ring.member_messages import JOIN, LEASE, LEAVE, Join, Lease, Leave
from longspan.ring.messages import (
    Challenge,
    Failed,
    Greeting,
    Hello,
    Passed,
    Ping,
    Progress,
    Proof,
    Ready,
    Refuse,
    Welcome,
    decode,
    encode,
    encode_iteration,
)
from longspan.ring.registrar import Registrar
from longspan.ring.security import OPEN, Security, SecurityOptions, load_security
from longspan.ring.stage_compute import StageCompute
from longspan.ring.stage_server import StageServer
from longspan.ring.survey_messages import REPORT, SURVEY
from longspan.ring.tcp import TcpLink
from longspan.runtime.base import Capacity
from longspan.runtime.scripted import ScriptedRuntime
from longspan.sampling.parameters import SamplingParameters
from longspan.schedule.limits import Limits
from longspan.schedule.planner import Planner
from longspan.schedule.policy import Policy
from longspan.schedule.request import SequenceRequest
from longspan.schedule.span import Drop, Iteration, IterationResult, Phase, SlotSampling, Span
from tests.ring.mutation import Mutator
from tests.ring.scripted_ring import DIGEST, SCRIPT, Coordinator, ScriptedLoader, ring_plan
from tests.ring.test_driver import truth
from tests.ring.test_messages import FRAMES
from tests.ring.test_stage_server import hello

MAX_PAYLOAD = 1 << 20


def raw(frame: Frame) -> bytes:
    return b"".join(bytes(part) for part in frame.parts())


WIDTH = 16
SPAN = Span(7, 0, 0, 0, (1, 2, 3), Phase.PREFILL, (2,))
ITERATION = Iteration(0, (Drop(0),), (SlotSampling(0, SamplingParameters(temperature=0.5)),), (SPAN,))
RUNS = raw(encode_iteration(ITERATION, np.zeros((3, WIDTH), np.float32), "float32"))
"""An iteration that the stage of these tests can run."""
OTHERS = [
    WANT.encode(Want("layers/3.gguf", 5)),
    CHUNK.encode(Chunk(0, 8), b"contents"),
    JOIN.encode(Join("attic", "0123456789abcdef", "192.0.2.7", 7000)),
    LEASE.encode(Lease(5.0)),
    LEAVE.encode(Leave("gone")),
]
RIGHT = [raw(frame) for frame in (*FRAMES.values(), *OTHERS)] + [RUNS] * 4


class _NoSocket(asyncio.Transport):
    """Where a link believes that its bytes come from."""

    closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        """Whoever feeds the link sees by its queue that it is full."""

    def resume_reading(self) -> None:
        """See `pause_reading`."""

    def is_closing(self) -> bool:
        return self.closed


class Parsers:
    """A link without a socket, and behind it everything that reads frames, on both sides of the ring."""

    def __init__(self) -> None:
        self._loader = ScriptedLoader()
        runtime = ScriptedRuntime(SCRIPT, last=True, capacity=Capacity(4, 256, 64, 32), width=WIDTH)
        self._compute = StageCompute(runtime, 0, WIDTH, "float32")
        self._readers: dict[Kind, Callable[[Frame], object]] = {
            Kind.HELLO: self._hello,
            Kind.REFUSE: lambda frame: decode(frame, Refuse),
            Kind.PROGRESS: lambda frame: decode(frame, Progress),
            Kind.READY: lambda frame: stage_client._checked(decode(frame, Ready), cast(Any, hello().assignment)),
            Kind.WELCOME: lambda frame: decode(frame, Welcome),
            Kind.ITERATION: lambda frame: self._compute.run_frame(frame, 0.0),
            Kind.RESULT: self._result,
            Kind.PING: lambda frame: decode(frame, Ping),
            Kind.PONG: lambda frame: decode(frame, Ping),
            Kind.FAILED: lambda frame: decode(frame, Failed),
            Kind.PASSED: lambda frame: decode(frame, Passed),
            Kind.CHALLENGE: lambda frame: decode(frame, Challenge),
            Kind.PROOF: lambda frame: decode(frame, Proof),
            Kind.SURVEY: SURVEY.decode,
            Kind.REPORT: REPORT.decode,
            Kind.WANT: WANT.decode,
            Kind.CHUNK: CHUNK.decode,
            Kind.JOIN: JOIN.decode,
            Kind.LEASE: LEASE.decode,
            Kind.LEAVE: LEAVE.decode,
        }
        self.refused = self.taken = 0
        self._plan()

    def _plan(self) -> None:
        """A planner that waits for the result of an iteration."""
        self._planner = Planner(Limits(slots=4, cells_per_slot=256, exact_rows=32, max_rows=64, chunk=8), Policy())
        self._planner.submit(SequenceRequest(prompt=(1, 2, 3), max_tokens=200), 0.0)
        self._planner.plan(0.0)

    def _hello(self, frame: Frame) -> None:
        decode(frame, Greeting)
        said = decode(frame, Hello)
        if said.assignment is not None and not assignment_refusal(said.assignment, self._loader):
            assert said.assignment.slots * said.assignment.cells_per_slot < 2**31

    def _result(self, frame: Frame) -> None:
        result = decode(frame, IterationResult)
        try:
            self._planner.complete(result, 0.0)
        except LongspanError:
            self._plan()
            raise
        if self._planner.plan(0.0) is None:
            self._plan()

    async def feed(self, data: bytes, cut: int, *, stranger: bool) -> None:
        """What a link makes of these bytes, in pieces of `cut`, and the parsers of its frames."""
        link = TcpLink()
        link.connection_made(_NoSocket())
        bound = COMMON_BYTES + MAX_HANDSHAKE_HEADER_BYTES
        if not stranger:
            link.open_payloads(MAX_PAYLOAD)
            bound = COMMON_BYTES + (32 << 20) + MAX_PAYLOAD
        while data and link._error is None:
            view = link.get_buffer(-1)
            assert 0 < len(view) <= bound
            count = min(len(view), cut, len(data))
            view[:count], data = data[:count], data[count:]
            link.buffer_updated(count)
        while link._frames:
            frame = await link.receive()
            try:
                reader = self._readers.get(frame.kind)
                if reader is not None:
                    reader(frame)
                self.taken += 1
            except LongspanError:
                self.refused += 1
        self.refused += link._error is not None


async def fuzz_parsers(count: int, seed: int) -> None:
    mutator = Mutator(seed, RIGHT)
    chance = random.Random(seed)
    parsers = Parsers()
    await parsers.feed(RIGHT[0], 7, stranger=True)
    process = psutil.Process()
    before = process.memory_info().rss
    for _ in range(count):
        async with asyncio.timeout(5):
            await parsers.feed(mutator.frames(), chance.choice((1 << 20, 64, 7)), stranger=chance.random() < 0.4)
    assert process.memory_info().rss - before < 300 << 20
    # It is no test if nothing comes through, nor if everything does.
    assert parsers.refused > count // 5
    assert parsers.taken > count // 5


async def test_wrong_frames_are_refused_by_every_parser() -> None:
    await fuzz_parsers(6_000, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(5))
async def test_a_million_wrong_frames_are_refused_by_every_parser(part: int) -> None:
    await fuzz_parsers(200_000, seed=100 + part)


# -------------------------------------------------------------------------------------------------------- live ends


@pytest.fixture(autouse=True)
def not_kept() -> Iterator[None]:
    """pytest keeps what is logged, and with an error its traceback, and with that the link and its buffers."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def token(tmp_path: Path) -> Security:
    create_token(tmp_path / "token")
    return load_security(SecurityOptions(token_file=str(tmp_path / "token")))


def sessions(seed: int) -> Iterator[bytes]:
    """What a peer may say to a stage, nearly right."""
    said = [raw(encode(hello())), raw(encode(hello(ring="other"))), *RIGHT]
    mutator = Mutator(seed, said)
    chance = random.Random(seed)
    while True:
        beginning = raw(encode(hello())) if chance.random() < 0.5 else b""
        yield beginning + mutator.frames()


async def answers(server: StageServer, security: Security) -> bool:
    async with (
        asyncio.timeout(20),
        Coordinator(ring_plan([server.port]), ScriptedLoader(), security=security) as coordinator,
    ):
        given = coordinator.submit([5, 6, 7], 6)
        await coordinator.finish(10)
    return given.tokens == truth([5, 6, 7], 6)


async def fuzz_stage(count: int, seed: int, token: Security) -> None:
    """Half of the sessions with a stage that is open, half inside of TLS with one that asks for a token."""
    process = psutil.Process()
    servers = [StageServer(ScriptedLoader(), security) for security in (OPEN, token)]
    said = sessions(seed)
    try:
        for server in servers:
            await server.start("127.0.0.1", 0)
            assert await answers(server, server._security)
        before = process.memory_info().rss
        for number in range(count):
            server = servers[number % 2]
            link = await connect("127.0.0.1", server.port, 5.0)
            async with asyncio.timeout(8):
                if server._security.opening is not None:
                    await link.secure(server._security.opening, server_side=False, seconds=5.0)
                assert link._transport is not None
                link._transport.write(next(said))
                with contextlib.suppress(TimeoutError, RingError):
                    async with asyncio.timeout(0.02):
                        while True:
                            await link.receive()
            link.abort()
            if number % 200 > 197:
                assert await answers(server, server._security)
        for server in servers:
            assert await answers(server, server._security), "service is harmed"
            async with asyncio.timeout(5):
                while server._strangers:  # noqa: ASYNC110 - what is waited for is at the other end of a socket
                    await asyncio.sleep(0.01)
        assert process.memory_info().rss - before < 200 << 20
    finally:
        await asyncio.gather(*(server.close() for server in servers))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_a_stage_that_gets_wrong_frames_goes_on_serving(token: Security) -> None:
    await fuzz_stage(100, 3, token)


@pytest.mark.soak
async def test_a_stage_that_gets_thousands_of_wrong_frames_goes_on_serving(token: Security) -> None:
    await fuzz_stage(4_000, 4, token)


async def fuzz_coordinator(count: int, seed: int) -> None:
    """A stage that says nearly the right thing: the ring does not form, or it ends, with an error and in time."""
    chance = random.Random(seed)
    ready = raw(encode(Ready(4, 256, 64, 32, 1, 1)))
    handshake = Mutator(seed, [raw(encode(Progress("loading"))), ready, *RIGHT])
    running = Mutator(seed + 1, [raw(FRAMES[name]) for name in ("result", "passed", "pong", "failed", "result")])
    tasks: list[asyncio.Task[None]] = []

    async def stage(link: TcpLink) -> None:
        with contextlib.suppress(RingError):
            await link.receive()
            assert link._transport is not None
            if chance.random() < 0.5:
                link._transport.write(handshake.frames())
            else:
                link._transport.write(ready)
                link.open_payloads()
                frame = await link.receive()
                for _ in range(3):
                    if frame.kind is Kind.ITERATION:
                        link._transport.write(running.frames())
                    frame = await link.receive()
        link.abort()

    loop = asyncio.get_running_loop()
    listener = await loop.create_server(
        lambda: TcpLink(lambda link: tasks.append(loop.create_task(stage(link)))), "127.0.0.1", 0
    )
    port = listener.sockets[0].getsockname()[1]
    ended = 0
    try:
        for _ in range(count):
            tasks.clear()
            with contextlib.suppress(RingError):
                async with asyncio.timeout(10), Coordinator(ring_plan([port]), ScriptedLoader()) as coordinator:
                    given = coordinator.submit([5, 6, 7], 6)
                    await coordinator.finish(5)
                    ended += bool(coordinator.failures) or bool(given.ended)
                    continue
            ended += 1
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        listener.close()
    assert ended == count


async def test_a_coordinator_that_gets_wrong_frames_ends_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_client, "FIRST_SIGN_SECONDS", 0.2)
    monkeypatch.setattr(stage_client, "LOAD_SECONDS", 0.2)
    await fuzz_coordinator(60, 5)


@pytest.mark.soak
async def test_a_coordinator_that_gets_thousands_of_wrong_frames_ends_every_ring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stage_client, "FIRST_SIGN_SECONDS", 0.2)
    monkeypatch.setattr(stage_client, "LOAD_SECONDS", 0.2)
    await fuzz_coordinator(3_000, 6)


async def fuzz_registrar(count: int, seed: int) -> None:
    """Stages that register nearly right with a coordinator; one that does it right is let in before and after."""
    member = raw(encode(Hello(PROTOCOL_VERSION, "0", "member", "", "")))
    join = raw(JOIN.encode(Join("attic", "0123456789abcdef", "192.0.2.7", 7000)))
    mutator = Mutator(seed, [member, join, join, *RIGHT])
    chance = random.Random(seed)
    door = Registrar(DIGEST)
    await door.start("127.0.0.1", 0)
    try:
        for number in range(count + 1):
            link = await connect("127.0.0.1", door.port, 5.0)
            assert link._transport is not None
            right = number in (0, count)
            link._transport.write(member + join if right else (member * (chance.random() < 0.7)) + mutator.frames())
            async with asyncio.timeout(5):
                if right:
                    LEASE.decode(await link.receive())
                with contextlib.suppress(TimeoutError, RingError):
                    async with asyncio.timeout(0.005):
                        await link.receive()
            assert len(door.members) <= 256
            link.abort()
    finally:
        await door.close()
        await asyncio.sleep(0.02)


async def test_a_coordinator_that_is_joined_by_wrong_frames_lets_right_ones_in() -> None:
    await fuzz_registrar(100, 7)


@pytest.mark.soak
async def test_a_coordinator_that_is_joined_by_thousands_of_wrong_frames_lets_right_ones_in() -> None:
    await fuzz_registrar(4_000, 8)


async def test_a_stage_that_hangs_up_in_the_middle_of_a_handshake(token: Security) -> None:
    """Every beginning of a right session, cut off."""
    server = StageServer(ScriptedLoader(), token)
    await server.start("127.0.0.1", 0)
    try:
        for end in range(0, 300, 12):
            plain = socket.socket()
            plain.setblocking(False)
            await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", server.port))
            plain.send((b"\x16\x03\x01\x01\x20\x01\x00\x01\x1c\x03\x03" + bytes(300))[:end])
            plain.close()
        assert await answers(server, token)
    finally:
        await server.close()
