"""A stage's part in one ring, from the coordinator's Hello to the end of the connection."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable

import psutil

from longspan import __version__
from longspan.errors import LongspanError, ProtocolError, RingError
from longspan.ring.delay import delayed
from longspan.ring.frame import PROTOCOL_VERSION, Frame, Kind
from longspan.ring.link import Link
from longspan.ring.messages import (
    Assignment,
    Failed,
    Hello,
    Passed,
    Ping,
    Progress,
    Ready,
    Refuse,
    Welcome,
    decode,
    encode,
)
from longspan.ring.stage_compute import StageCompute
from longspan.ring.tcp import TcpLink, connect
from longspan.ring.worker import Worker
from longspan.runtime.base import StageRuntime

CONNECT_SECONDS = 20.0
"""How long a stage waits for the next stage, which may still be loading its layers."""

QUEUE_FRAMES = 64
"""Iterations that may wait for the runtime before the stage stops reading."""

log = logging.getLogger(__name__)


class StageSession:
    """Runs one assignment. Frames are taken, run and passed on strictly in order."""

    def __init__(self, control: TcpLink, hello: Hello, assignment: Assignment, worker: Worker, width: int) -> None:
        self.ring = hello.ring
        self.assignment = assignment
        self._digest = hello.digest
        self._control_raw = control
        self._control = delayed(control, assignment.return_delay_ms)
        self._worker = worker
        self._width = width
        self._next: Link | None = None
        self._compute: StageCompute | None = None
        self._outgoing: asyncio.Queue[Frame | BaseException] = asyncio.Queue()
        self._room = asyncio.Semaphore(QUEUE_FRAMES)
        self._readers: list[asyncio.Task[None]] = []
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, load: Callable[[Callable[[str], None]], StageRuntime]) -> str:
        """Serve until a link closes or something fails; the reason, for the log."""
        self._read(self._control, self._control_raw)
        writer = asyncio.create_task(self._write())
        try:
            opening = asyncio.create_task(self._open(load))
            await asyncio.wait((opening, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            if not opening.cancelled():
                opening.result()
            await self._ended
        except LongspanError as error:
            await self._report(error)
            return str(error)
        finally:
            writer.cancel()
            for reader in self._readers:
                reader.cancel()
            await asyncio.gather(writer, *self._readers, return_exceptions=True)
            await self._control.close()
            if self._next is not None:
                await self._next.close()
        return "ended"

    def attach(self, link: TcpLink) -> None:
        """The stage before has connected: take iterations from it."""
        link.open_payloads()
        self._read(link, link)

    async def _open(self, load: Callable[[Callable[[str], None]], StageRuntime]) -> None:
        loop = asyncio.get_running_loop()

        def report(text: str) -> None:
            loop.call_soon_threadsafe(self._outgoing.put_nowait, encode(Progress(text)))

        runtime: StageRuntime = await self._worker.call(lambda: load(report))
        assignment = self.assignment
        self._compute = StageCompute(runtime, assignment.stage, self._width, assignment.dtype)
        if assignment.next_address is not None:
            self._next = delayed(await self._dial(*assignment.next_address), assignment.next_delay_ms)
        capacity = runtime.capacity()
        memory = psutil.Process().memory_info().rss
        self._control_raw.open_payloads()
        await self._control.send(
            encode(
                Ready(
                    capacity.slots,
                    capacity.cells_per_slot,
                    capacity.max_rows,
                    capacity.exact_rows,
                    os.getpid(),
                    memory,
                )
            )
        )

    async def _dial(self, host: str, port: int) -> TcpLink:
        deadline = time.monotonic() + CONNECT_SECONDS
        link = await connect(host, port, CONNECT_SECONDS)
        hello = Hello(PROTOCOL_VERSION, __version__, "upstream", self.ring, self._digest, self.assignment.stage)
        await link.send(encode(hello))
        try:
            answer = await asyncio.wait_for(link.receive(), max(0.1, deadline - time.monotonic()))
        except TimeoutError:
            await link.close()
            raise RingError(f"stage {self.assignment.stage + 1} at {host}:{port} does not take the link") from None
        if answer.kind is not Kind.WELCOME:
            reason = decode(answer, Refuse).reason if answer.kind is Kind.REFUSE else f"it sent {answer.kind.name}"
            await link.close()
            raise RingError(f"stage {self.assignment.stage + 1} at {host}:{port} refused the link: {reason}")
        decode(answer, Welcome)
        return link

    def _read(self, link: Link, raw: TcpLink) -> None:
        self._readers.append(asyncio.create_task(self._receive(link, raw)))

    async def _receive(self, link: Link, raw: TcpLink) -> None:
        try:
            while True:
                frame = await link.receive()
                if frame.kind is Kind.ITERATION:
                    await self._room.acquire()
                    self._submit(frame, time.perf_counter())
                elif frame.kind is Kind.PING:
                    await link.send(Frame(Kind.PONG, encode(decode(frame, Ping)).header))
                else:
                    raise ProtocolError(f"unexpected {frame.kind.name} frame from {raw.peer}")
        except LongspanError as error:
            self._end(error)

    def _submit(self, frame: Frame, received: float) -> None:
        if self._compute is None:
            self._end(ProtocolError("an iteration came before this stage was ready"))
            return
        compute = self._compute
        self._worker.submit(lambda: compute.run_frame(frame, received), self._computed)

    def _computed(self, frame: Frame | None, error: BaseException | None) -> None:
        self._room.release()
        if error is not None:
            if not isinstance(error, LongspanError):
                log.error("stage %d failed", self.assignment.stage, exc_info=error)
                error = RingError(f"stage {self.assignment.stage} failed: {type(error).__name__}: {error}")
            self._end(error)
        elif frame is not None:
            self._outgoing.put_nowait(frame)

    async def _write(self) -> None:
        passed = 0
        try:
            while True:
                frame = await self._outgoing.get()
                assert isinstance(frame, Frame)
                if frame.kind is Kind.ITERATION:
                    assert self._next is not None
                    await self._next.send(frame)
                    if self.assignment.stage == 0:
                        passed += 1
                        await self._control.send(encode(Passed(passed)))
                else:
                    await self._control.send(frame)
        except LongspanError as error:
            self._end(error)

    def _end(self, error: LongspanError | None) -> None:
        if not self._ended.done():
            if error is None:
                self._ended.set_result(None)
            else:
                self._ended.set_exception(error)

    async def _report(self, error: LongspanError) -> None:
        try:
            await asyncio.wait_for(self._control_raw.send(encode(Failed(str(error)))), 1.0)
        except (RingError, TimeoutError):
            log.debug("the coordinator is gone, so it is not told: %s", error)
