"""The stage process: listens, lets one coordinator in at a time, and outlives it."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
from collections.abc import Callable

from longspan import __version__
from longspan.errors import LongspanError, ModelError, ProtocolError, RingError, UsageError
from longspan.ring.assignment import assignment_refusal
from longspan.ring.frame import PROTOCOL_VERSION, Kind
from longspan.ring.handshake import NotAdmittedError
from longspan.ring.identity import Identity, Role
from longspan.ring.listening import stop_listening
from longspan.ring.loader import StageLoader
from longspan.ring.member_messages import HeldLayers
from longspan.ring.membership import Membership
from longspan.ring.messages import Assignment, Greeting, Hello, Refuse, Welcome, decode, encode
from longspan.ring.next_stage import CONNECT_SECONDS
from longspan.ring.ring_plan import same_coordinator
from longspan.ring.security import OPEN, Security
from longspan.ring.stage_session import StageSession
from longspan.ring.survey_server import answer_pings, answer_survey
from longspan.ring.tcp import TcpLink
from longspan.ring.worker import Worker
from longspan.runtime.base import StageRuntime

HELLO_SECONDS = 10.0
MAX_STRANGERS = 64
"""Connections that may be in their handshake at the same time; the oldest gives way to the next."""

log = logging.getLogger(__name__)


class StageServer:
    """Serves one model's layers. `port` is known after `start`."""

    def __init__(self, loader: StageLoader, security: Security = OPEN) -> None:
        self._loader = loader
        self._security = security
        self._server: asyncio.Server | None = None
        self._closing = False
        self._worker: Worker | None = None
        self._session: StageSession | None = None
        self._session_changed = asyncio.Event()
        self._preparing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._strangers: collections.OrderedDict[TcpLink, None] = collections.OrderedDict()
        self._held: tuple[tuple[str, int, int, int, int, bool, str], StageRuntime] | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises UsageError when the address cannot be listened on."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: TcpLink(self._on_connected, expects_tls=self._security.active), host, port
            )
        except (OSError, ValueError, OverflowError) as error:
            raise UsageError(
                f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}. "
                "Another process may use the port; choose another one, or 0 for any free port."
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]
        self._worker = Worker("longspan-stage")

    @property
    def held(self) -> HeldLayers | None:
        """What is loaded now."""
        if self._held is None:
            return None
        digest, start, end, *_ = self._held[0]
        return HeldLayers(digest, start, end)

    async def close(self) -> None:
        """Stop listening, end the session, release the layers."""
        self._closing = True
        if self._server is not None:
            await stop_listening(self._server)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in self._strangers:
            link.abort()  # of a task that was cancelled before it began
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.call(self._release)
            await worker.stop()
        # Links that were aborted, also those accepted before the socket was closed, end in the next rounds.
        for _ in range(3):
            await asyncio.sleep(0)

    # ----------------------------------------------------------------------------------------------- handshake

    def _on_connected(self, link: TcpLink) -> None:
        if self._closing:
            link.abort()  # it was accepted before the socket was closed
            return
        task = asyncio.get_running_loop().create_task(self._greet(link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Whoever connects idles at the cost of those who idle longer: a crowd of them keeps no coordinator out.
        if len(self._strangers) >= MAX_STRANGERS:
            self._strangers.popitem(last=False)[0].abort()
        self._strangers[link] = None

    async def _greet(self, link: TcpLink) -> None:
        attached = False
        try:
            identity, hello = await self._meet(link)
            self._check_role(identity, hello)
            if hello.role == "upstream":
                await self._attach(link, hello)
                attached = True
            elif hello.role in ("planner", "neighbour"):
                await self._answer(link, hello)
            else:
                await self._serve(link, hello, await self._accepted(link, hello))
        except (_RefusedError, NotAdmittedError) as refusal:
            log.warning("refused %s: %s", link.peer, refusal)
            # Who has not shown that he belongs here does not learn what is served here.
            digest = self._loader.digest if isinstance(refusal, _RefusedError) else ""
            with contextlib.suppress(RingError):
                await link.send(encode(Refuse(str(refusal), PROTOCOL_VERSION, __version__, digest)))
        except LongspanError as error:
            log.warning("%s: %s", link.peer, error)
        finally:
            self._strangers.pop(link, None)
            if not attached:
                await link.close()

    async def _meet(self, link: TcpLink) -> tuple[Identity, Hello]:
        """Who the peer is, and its Hello, of our protocol and our model."""
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                identity = await self._security.accept(link)
                frame = await link.receive()
        except TimeoutError:
            raise ProtocolError(f"no Hello within {HELLO_SECONDS:g} s") from None
        try:
            if frame.kind is not Kind.HELLO:
                raise ProtocolError(f"expected a HELLO frame, got {frame.kind.name}")
            self._check_greeting(decode(frame, Greeting))
            return identity, decode(frame, Hello)
        except ProtocolError as error:
            raise _RefusedError(str(error)) from None

    @staticmethod
    def _check_role(identity: Identity, hello: Hello) -> None:
        """Only a coordinator's certificate gives work, and only a stage's feeds the next one."""
        role: Role = "stage" if hello.role in ("upstream", "neighbour") else "coordinator"
        if not identity.may_be(role):
            raise _RefusedError(f"this certificate is of {identity}, only that of a {role} may ask for this")

    def _check_greeting(self, greeting: Greeting) -> None:
        if greeting.protocol != PROTOCOL_VERSION:
            raise _RefusedError(
                f"protocol version mismatch: this stage speaks {PROTOCOL_VERSION} (Longspan {__version__}, model "
                f"{self._loader.digest[:12]}), the peer speaks {greeting.protocol} (Longspan {greeting.version}, "
                f"model {greeting.digest[:12]}). Install the same Longspan on both machines."
            )
        if not self._loader.holds(greeting.digest):
            raise _RefusedError(
                f"model mismatch: this stage holds the model with digest {self._loader.digest[:12]}, the "
                f"coordinator serves {greeting.digest[:12]} (protocol {PROTOCOL_VERSION} on both). "
                "Start both with the same model file or layer package."
            )

    async def _accepted(self, link: TcpLink, hello: Hello) -> Assignment:
        """The coordinator's assignment, once the ring before is cleaned up and the layers are at hand."""
        if hello.role != "coordinator" or hello.assignment is None:
            raise _RefusedError(f"unknown role {hello.role!r}, or no assignment")
        await self._until_free(hello.ring)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._preparing.acquire()
        except TimeoutError:
            raise _RefusedError(
                "this stage gets its layers from another coordinator; stop that one first"
            ) from None
        try:
            await self._loader.prepare(link, hello.digest, hello.assignment)
            refusal = assignment_refusal(hello.assignment, self._loader)
        except ModelError as error:
            raise _RefusedError(str(error)) from None
        finally:
            self._preparing.release()
        if refusal:
            raise _RefusedError(refusal)
        await self._until_free(hello.ring)
        return hello.assignment

    async def _until_free(self, ring: str) -> None:
        """Wait until the ring before is cleaned up. A coordinator that comes again takes the place of its ghost."""
        while self._session is not None:
            if same_coordinator(ring, self._session.ring):
                self._session.end(f"its coordinator has begun ring {ring}")
            if not self._session.over:
                raise _RefusedError("this stage already serves another coordinator; stop that one first")
            await self._session_change()

    async def _attach(self, link: TcpLink, hello: Hello) -> None:
        """Hand the link of the stage before to the session of its ring, waiting for that to begin."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                while self._session is None or self._session.ring != hello.ring:
                    await self._session_change()
        except TimeoutError:
            raise _RefusedError(f"no coordinator has started ring {hello.ring} here") from None
        stage = self._session.assignment.stage
        if hello.stage != stage - 1:
            raise _RefusedError(f"stage {hello.stage} cannot feed stage {stage}")
        if self._session.fed:
            raise _RefusedError(f"stage {stage} is fed by another stage {hello.stage} already")
        await link.send(encode(Welcome(stage)))
        self._session.attach(link)

    async def _answer(self, link: TcpLink, hello: Hello) -> None:
        """Tell a planner about this machine, or another stage how far this one is."""
        self._strangers.pop(link, None)
        if hello.role == "neighbour":
            await answer_pings(link)
            return
        assert self._worker is not None
        await answer_survey(
            link, self._loader, self._worker, self._security, busy=lambda: self._session is not None
        )

    # ------------------------------------------------------------------------------------------------- serving

    async def _serve(self, link: TcpLink, hello: Hello, assignment: Assignment) -> None:
        assert self._worker is not None
        self._strangers.pop(link, None)
        session = StageSession(link, hello, assignment, self._worker, self._loader.width, self._security)
        self._change_session(session)
        log.info("stage %d (layers %d-%d) for %s", assignment.stage, assignment.start, assignment.end, link.peer)
        try:
            reason = await session.run(lambda report: self._load(assignment, report))
            log.info("ring %s ended: %s", hello.ring, reason)
            # The worker runs in order: after this call nothing of the old ring is left to run.
            await self._worker.call(self._release if session.broken else lambda: None)
        finally:
            self._change_session(None)

    def _change_session(self, session: StageSession | None) -> None:
        self._session = session
        self._session_changed.set()

    async def _session_change(self) -> None:
        self._session_changed.clear()
        await self._session_changed.wait()

    def _load(self, assignment: Assignment, report: Callable[[str], None]) -> StageRuntime:
        key = (
            *(self._loader.digest, assignment.start, assignment.end, assignment.slots, assignment.cells_per_slot),
            *(assignment.trees, assignment.mtp_head),
        )
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


class _RefusedError(RingError):
    """Why a peer is sent away; the peer is told."""


async def serve_stage(
    loader: StageLoader,
    host: str,
    port: int,
    on_listening: Callable[[int], None],
    security: Security = OPEN,
    member: Callable[[StageServer], Membership] | None = None,
) -> None:
    """Run a stage until cancelled; `on_listening` gets the port. Raises UsageError when it cannot listen.

    member: how it registers with a coordinator; then it ends with DismissedError when it is sent away.
    """
    server = StageServer(loader, security)
    await server.start(host, port)
    on_listening(server.port)
    try:
        if member is not None:
            await member(server).run()
        await asyncio.get_running_loop().create_future()
    finally:
        await server.close()
