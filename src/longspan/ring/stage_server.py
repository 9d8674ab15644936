"""The stage process: listens, lets one coordinator in at a time, and outlives it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from longspan import __version__
from longspan.errors import LongspanError, ProtocolError, UsageError
from longspan.ring.frame import PROTOCOL_VERSION, Kind
from longspan.ring.loader import StageLoader
from longspan.ring.messages import DTYPES, Assignment, Hello, Refuse, Welcome, decode, encode
from longspan.ring.stage_session import CONNECT_SECONDS, StageSession
from longspan.ring.tcp import TcpLink
from longspan.ring.worker import Worker
from longspan.runtime.base import StageRuntime

HELLO_SECONDS = 10.0
MAX_STRANGERS = 64
"""Connections that may be in their handshake at the same time."""

MAX_SLOTS = 1024
MAX_CELLS = 1 << 24

log = logging.getLogger(__name__)


class StageServer:
    """Serves one model's layers. `port` is known after `start`."""

    def __init__(self, loader: StageLoader) -> None:
        self._loader = loader
        self._server: asyncio.Server | None = None
        self._worker: Worker | None = None
        self._session: StageSession | None = None
        self._session_changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._strangers = 0
        self._held: tuple[tuple[object, ...], StageRuntime] | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises UsageError when the address cannot be listened on."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: TcpLink(self._on_connected), host, port)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host}:{port}: {error.strerror or error}. "
                "Another process may use the port; choose another one, or 0 for any free port."
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]
        self._worker = Worker("longspan-stage")

    async def close(self) -> None:
        """Stop listening, end the session, release the layers."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._worker is not None:
            await self._worker.call(self._release)
            await self._worker.stop()

    def _on_connected(self, link: TcpLink) -> None:
        task = asyncio.get_running_loop().create_task(self._greet(link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _greet(self, link: TcpLink) -> None:
        served = False
        try:
            if self._strangers >= MAX_STRANGERS:
                return
            self._strangers += 1
            try:
                frame = await asyncio.wait_for(link.receive(), HELLO_SECONDS)
            finally:
                self._strangers -= 1
            if frame.kind is not Kind.HELLO:
                raise ProtocolError(f"expected a HELLO frame from {link.peer}, got {frame.kind.name}")
            hello = decode(frame, Hello)
            refusal = self._refusal(hello)
            if not refusal and hello.role == "upstream":
                refusal = await self._attach(link, hello)
                served = not refusal
            elif not refusal and hello.assignment is not None:
                await self._serve(link, hello, hello.assignment)
            if refusal:
                log.warning("refused %s: %s", link.peer, refusal)
                await link.send(encode(Refuse(refusal, PROTOCOL_VERSION, __version__, self._loader.digest)))
        except (LongspanError, TimeoutError) as error:
            log.warning("%s: %s", link.peer, error or "no Hello in time")
        finally:
            if not served:
                await link.close()

    def _refusal(self, hello: Hello) -> str:
        """Why this Hello cannot be accepted, or an empty string."""
        if hello.protocol != PROTOCOL_VERSION:
            return (
                f"protocol version mismatch: this stage speaks {PROTOCOL_VERSION} (Longspan {__version__}, model "
                f"{self._loader.digest[:12]}), the peer speaks {hello.protocol} (Longspan {hello.version}, model "
                f"{hello.digest[:12]}). Install the same Longspan on both machines."
            )
        if hello.digest != self._loader.digest:
            return (
                f"model mismatch: this stage holds the model with digest {self._loader.digest[:12]}, the "
                f"coordinator serves {hello.digest[:12]} (protocol {PROTOCOL_VERSION} on both). "
                "Start both with the same model file or layer package."
            )
        if hello.role == "upstream":
            return ""
        if hello.role != "coordinator" or hello.assignment is None:
            return f"unknown role {hello.role!r}, or no assignment"
        if self._session is not None:
            return "this stage already serves another coordinator; stop that one first"
        return _assignment_refusal(hello.assignment, self._loader)

    async def _serve(self, link: TcpLink, hello: Hello, assignment: Assignment) -> None:
        assert self._worker is not None
        session = StageSession(link, hello, assignment, self._worker, self._loader.width)
        self._session = session
        self._session_changed.set()
        log.info("stage %d (layers %d-%d) for %s", assignment.stage, assignment.start, assignment.end, link.peer)
        try:
            reason = await session.run(lambda report: self._load(assignment, report))
            log.info("ring %s ended: %s", hello.ring, reason)
        finally:
            self._session = None
            # The worker runs in order: after this call nothing of the old ring is left to run.
            with contextlib.suppress(asyncio.CancelledError):
                await self._worker.call(lambda: None)

    async def _attach(self, link: TcpLink, hello: Hello) -> str:
        """Hand the link of the stage before to the session of its ring, waiting for that to begin."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CONNECT_SECONDS
        while self._session is None or self._session.ring != hello.ring:
            self._session_changed.clear()
            try:
                await asyncio.wait_for(self._session_changed.wait(), deadline - loop.time())
            except TimeoutError:
                return f"no coordinator has started ring {hello.ring} here"
        if hello.stage != self._session.assignment.stage - 1:
            return f"stage {hello.stage} cannot feed stage {self._session.assignment.stage}"
        await link.send(encode(Welcome(self._session.assignment.stage)))
        self._session.attach(link)
        return ""

    def _load(self, assignment: Assignment, report: Callable[[str], None]) -> StageRuntime:
        key = (assignment.start, assignment.end, assignment.slots, assignment.cells_per_slot)
        if self._held is not None and self._held[0] == key:
            return self._held[1]
        self._release()
        report(f"loading layers {assignment.start}-{assignment.end}")
        runtime = self._loader.load(assignment, report)
        self._held = (key, runtime)
        return runtime

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held[1].close()


def _assignment_refusal(assignment: Assignment, loader: StageLoader) -> str:
    if assignment.layers != loader.layers or not 0 <= assignment.start < assignment.end <= loader.layers:
        return (
            f"layers {assignment.start}-{assignment.end} of {assignment.layers} cannot be served, "
            f"this model has layers 0-{loader.layers}"
        )
    if not 0 <= assignment.stage < assignment.stages:
        return f"stage {assignment.stage} of {assignment.stages} does not exist"
    if (assignment.next_address is None) != (assignment.end == loader.layers):
        return "only the stage with the last layer may be the last of the ring"
    if not 1 <= assignment.slots <= MAX_SLOTS or not 1 <= assignment.cells_per_slot <= MAX_CELLS:
        return f"{assignment.slots} slots of {assignment.cells_per_slot} positions are out of range"
    if assignment.dtype not in DTYPES:
        return f"unknown activation type {assignment.dtype!r}, expected one of {', '.join(DTYPES)}"
    if assignment.dtype not in loader.dtypes:
        return (
            f"activations in {assignment.dtype} would change this model's results (mixture-of-experts routing); "
            f"use {' or '.join(loader.dtypes)}"
        )
    if not 0 <= assignment.next_delay_ms <= 60_000 or not 0 <= assignment.return_delay_ms <= 60_000:
        return "an emulated delay must be between 0 and 60,000 ms"
    return ""


async def serve_stage(loader: StageLoader, host: str, port: int, on_listening: Callable[[int], None]) -> None:
    """Run a stage until cancelled; `on_listening` gets the port. Raises UsageError when it cannot listen."""
    server = StageServer(loader)
    await server.start(host, port)
    on_listening(server.port)
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        await server.close()
