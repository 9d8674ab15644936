"""A stage's part in one ring, from the coordinator's Hello to the end of the connection."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine

import psutil

from longspan.errors import LongspanError, ProtocolError, RingError
from longspan.ring.delay import delayed
from longspan.ring.frame import Frame, Kind
from longspan.ring.link import Link
from longspan.ring.messages import (
    Assignment,
    Failed,
    Hello,
    Passed,
    Ping,
    Progress,
    Ready,
    decode,
    encode,
)
from longspan.ring.next_stage import NeighbourError, NextStage
from longspan.ring.outbox import Outbox
from longspan.ring.room import Room
from longspan.ring.security import OPEN, Security
from longspan.ring.stage_compute import StageCompute
from longspan.ring.tcp import TcpLink
from longspan.ring.worker import TOLD, Worker
from longspan.runtime.base import StageRuntime

SILENCE_SECONDS = 90.0
"""A coordinator that pinged before and has sent nothing for so long is gone, whatever TCP says."""

QUEUE_FRAMES = 64
"""Iterations that a stage holds, waiting, running or on their way out, before it stops reading."""

log = logging.getLogger(__name__)


class StageSession:
    """Runs one assignment. Frames are taken, run and passed on strictly in order.

    fed: the stage before is connected. broken: the runtime failed in the middle of an iteration, so that nobody
    knows what it holds.
    """

    def __init__(
        self,
        control: TcpLink,
        hello: Hello,
        assignment: Assignment,
        worker: Worker,
        width: int,
        security: Security = OPEN,
    ) -> None:
        self.ring = hello.ring
        self.assignment = assignment
        self.fed = False
        self.broken = False
        self._control_raw = control
        self._control = delayed(control, assignment.return_delay_ms)
        self._worker = worker
        self._width = width
        self._following = NextStage(hello.ring, hello.digest, assignment.stage, security)
        self._next: Link | None = None
        self._links = [control]
        self._compute: StageCompute | None = None
        self._loop = asyncio.get_running_loop()
        self._outgoing = Outbox(self._route, lambda frame: self._sent(frame, self._outgoing.put))
        self._room = Room(QUEUE_FRAMES)
        self._readers: list[asyncio.Task[None]] = []
        self._silence: asyncio.TimerHandle | None = None
        self._heard = 0.0
        self._ended: asyncio.Future[LongspanError] = self._loop.create_future()

    @property
    def over(self) -> bool:
        """True once the ring has ended, while its links still close."""
        return self._ended.done()

    async def run(self, load: Callable[[Callable[[str], None]], StageRuntime]) -> str:
        """Serve until a link closes or something fails; the reason, for the log."""
        self._start_reading(self._receive_from_coordinator())
        writer = asyncio.create_task(self._write())
        opening = asyncio.create_task(self._open(load))
        try:
            error = await self._ended
            await self._report(error)
            return str(error)
        finally:
            if self._silence is not None:
                self._silence.cancel()
            tasks = (opening, writer, *self._readers)
            for task in tasks:
                task.cancel()
            try:
                await asyncio.gather(*tasks, return_exceptions=True)
                await self._control.close()
                if self._next is not None:
                    await self._next.close()
            finally:
                # Also of a reader that was cancelled before it began, and when this is cancelled half-way.
                for link in self._links:
                    link.abort()

    def end(self, reason: str) -> None:
        """End this ring, as when its coordinator goes."""
        self._end(RingError(reason))

    def attach(self, link: TcpLink) -> None:
        """The stage before has connected: take iterations from it."""
        self.fed = True
        self._links.append(link)
        if self.over:
            link.abort()
            return
        link.open_payloads()
        self._start_reading(self._receive_from_upstream(link))

    # ------------------------------------------------------------------------------------------------- opening

    async def _open(self, load: Callable[[Callable[[str], None]], StageRuntime]) -> None:
        """Load the layers, connect to the next stage, say that this one is ready."""
        loop = asyncio.get_running_loop()

        def report(text: str) -> None:
            loop.call_soon_threadsafe(self._outgoing.put, encode(Progress(text)))

        assignment = self.assignment
        try:
            runtime: StageRuntime = await self._worker.call(lambda: load(report))
            self._compute = StageCompute(runtime, assignment.stage, self._width, assignment.dtype)
            if assignment.next_address is not None:
                raw = await self._following.dial(*assignment.next_address)
                self._links.append(raw)
                self._next = delayed(raw, assignment.next_delay_ms)
                self._start_reading(self._watch_next(raw))
        except LongspanError as error:
            self._end(error)
            return
        except Exception as error:
            self._end(self._unexpected(error))
            return
        capacity = runtime.capacity()
        self._control_raw.open_payloads()
        self._outgoing.put(
            encode(
                Ready(
                    capacity.slots,
                    capacity.cells_per_slot,
                    capacity.max_rows,
                    capacity.exact_rows,
                    os.getpid(),
                    psutil.Process().memory_info().rss,
                )
            )
        )

    # ------------------------------------------------------------------------------------------------ receiving

    def _start_reading(self, reader: Coroutine[None, None, None]) -> None:
        self._readers.append(asyncio.create_task(reader))

    async def _receive_from_coordinator(self) -> None:
        try:
            await self._receive(self._control, self._control_raw)
        except LongspanError as error:
            self._end(error)

    async def _receive_from_upstream(self, link: TcpLink) -> None:
        try:
            await self._receive(link, link)
        except ProtocolError as error:
            self._end(error)
        except LongspanError as error:
            before = self.assignment.stage - 1
            self._end(NeighbourError(before, f"its link to stage {before + 1} has ended: {error}"))
        finally:
            await link.close()

    async def _receive(self, link: Link, raw: TcpLink) -> None:
        raw.take_early(self._take_early)
        while True:
            frame = await link.receive()
            if frame.kind is Kind.ITERATION:
                await self._room.take()
                self._submit(frame, time.perf_counter())
            elif frame.kind is Kind.PING:
                self._heard = time.perf_counter()
                if self._silence is None:
                    self._listen_on()
                await link.send(Frame(Kind.PONG, encode(decode(frame, Ping)).header))
            else:
                raise ProtocolError(f"unexpected {frame.kind.name} frame from {raw.peer}")

    def _listen_on(self) -> None:
        """End the ring once neither a ping nor an iteration, which is the coordinator's too, has come for long."""
        left = self._heard + SILENCE_SECONDS - time.perf_counter()
        if left <= 0:
            self._end(RingError(f"the coordinator has sent nothing for {SILENCE_SECONDS:g} s"))
        else:
            self._silence = self._loop.call_later(left, self._listen_on)

    def _take_early(self, frame: Frame) -> bool:
        """An iteration goes straight to the worker, unless others wait for room before it."""
        if frame.kind is not Kind.ITERATION or self._compute is None or not self._room.try_take():
            return False
        self._submit(frame, time.perf_counter())
        return True

    async def _watch_next(self, link: TcpLink) -> None:
        """Notice the loss of the next stage also while nothing is sent there."""
        try:
            frame = await link.receive()
            self._end(ProtocolError(f"unexpected {frame.kind.name} frame from the next stage, {link.peer}"))
        except LongspanError as error:
            self._end(self._following.lost(error))

    # ---------------------------------------------------------------------------------------- running and sending

    def _submit(self, frame: Frame, received: float) -> None:
        if self._compute is None:
            raise ProtocolError("an iteration came before this stage was ready")
        compute = self._compute
        self._heard = received

        def run() -> object:
            outcome = compute.run_frame(frame, received)
            if not self._outgoing.send_from_thread(outcome):
                return outcome
            self._sent(outcome, self._put_from_thread)
            return TOLD

        self._worker.submit(run, self._computed)

    def _computed(self, outcome: Frame | None, error: BaseException | None) -> None:
        if outcome is not None:
            self._outgoing.take(outcome)
            return
        # A malformed frame is refused before anything was changed; after any other error the slots are in doubt.
        self.broken = self.broken or not isinstance(error, ProtocolError)
        self._end(error if isinstance(error, LongspanError) else self._unexpected(error))

    def _route(self, frame: Frame) -> Link:
        if frame.kind is not Kind.ITERATION:
            return self._control
        assert self._next is not None
        return self._next

    def _sent(self, frame: Frame, put: Callable[[Frame], None]) -> None:
        """A frame is on its way; `put` sends what that calls for."""
        if frame.kind in (Kind.ITERATION, Kind.RESULT):
            passed = self._room.give_back()
            if frame.kind is Kind.ITERATION and self.assignment.stage == 0:
                put(encode(Passed(passed)))

    def _put_from_thread(self, frame: Frame) -> None:
        """Send to the coordinator from the worker's thread. Order does not matter to a count that only grows."""
        if not self._control.send_from_thread(frame):
            self._loop.call_soon_threadsafe(self._outgoing.put, frame)

    async def _write(self) -> None:
        try:
            await self._outgoing.run()
        except LongspanError as error:
            to_next = self._next is not None and self._outgoing.link is self._next
            self._end(self._following.lost(error) if to_next else error)

    # --------------------------------------------------------------------------------------------------- the end

    def _end(self, error: LongspanError) -> None:
        """The ring ends here; the first reason counts."""
        if not self._ended.done():
            self._ended.set_result(error)

    def _unexpected(self, error: BaseException | None) -> RingError:
        log.error("stage %d failed", self.assignment.stage, exc_info=error)
        return RingError(f"{type(error).__name__}: {error}")

    async def _report(self, error: LongspanError) -> None:
        """Tell the coordinator, unless it is the one who has gone."""
        stage = error.stage if isinstance(error, NeighbourError) else self.assignment.stage
        try:
            async with asyncio.timeout(1.0):
                await self._control_raw.send(encode(Failed(stage, str(error))))
        except (RingError, TimeoutError):
            log.debug("the coordinator is gone, so it is not told: %s", error)
