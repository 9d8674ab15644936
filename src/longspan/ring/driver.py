"""The coordinator's side of the ring: forms it, feeds the first stage, takes results from the last."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from longspan.errors import LongspanError, ProtocolError, RingError
from longspan.ring.artifact_source import ArtifactSource
from longspan.ring.frame import Frame, Kind
from longspan.ring.loader import StageLoader
from longspan.ring.messages import Assignment, Failed, Passed, decode, encode_iteration
from longspan.ring.outbox import Outbox
from longspan.ring.own_stage import OwnStage
from longspan.ring.patience import Patience
from longspan.ring.ring_plan import RingPlan, StagePlace
from longspan.ring.security import OPEN, Security
from longspan.ring.stage_client import StageClient
from longspan.runtime.base import Activations, Capacity
from longspan.schedule.span import Iteration, IterationResult
from longspan.status import StageStatus

PING_SECONDS = 1.0
"""Pings measure the round trip and keep TCP's window from closing on an idle link."""

SILENCE_SECONDS = 30.0
"""A stage that answers no ping for so long is lost, whatever TCP says: it is stopped, asleep or cut off. Longer
than any chunk of a prompt takes on a slow link, behind which a ping waits."""

WITNESS_SECONDS = 0.25
"""How long a stage that a neighbour reports as lost may take to say itself what happened to it."""

log = logging.getLogger(__name__)


class RingDriver:
    """One ring, from forming to its end. All methods run on one event loop.

    on_result: every iteration's result, in the order of the iterations. on_room: the first stage can take another
    iteration. on_failure: the ring has ended; called once, nothing comes after it.
    """

    def __init__(
        self,
        plan: RingPlan,
        loader: StageLoader,
        *,
        on_result: Callable[[IterationResult], None],
        on_room: Callable[[], None],
        on_failure: Callable[[RingError], None],
        on_progress: Callable[[str], None],
        security: Security = OPEN,
        artifacts: ArtifactSource | None = None,
        silence_seconds: float | None = None,
    ) -> None:
        """silence_seconds: how long a stage may say nothing; None: `SILENCE_SECONDS`."""
        self._plan = plan
        self._loader = loader
        self._on_result = on_result
        self._on_room = on_room
        self._on_failure = on_failure
        self._clients = [
            StageClient(place, on_progress, security, artifacts)
            for place in plan.places
            if place.address is not None
        ]
        first = plan.places[0]
        self._own = OwnStage(first, loader, on_progress) if first.address is None else None
        self._outgoing = Outbox(lambda frame: self._clients[0].link, self._sent_on)
        self._tasks: list[asyncio.Task[None]] = []
        self._compute_seconds: dict[int, float] = {}
        self._witnesses: set[StageClient | OwnStage] = set()
        self._sent = 0
        self._passed = 0
        self._silence = silence_seconds or SILENCE_SECONDS
        self._patience = Patience(self._silence)
        self._over = False
        self._closing: asyncio.Task[None] | None = None

    async def form(self) -> Capacity:
        """Connect every stage, let them load, open the links between them; what the ring as a whole can hold.

        Raises RingError (or what a stage refused with), naming the stage; then everything is closed again.
        """
        try:
            opening = [asyncio.create_task(self._open_client(client)) for client in self._clients]
            if self._own is not None:
                opening.append(asyncio.create_task(self._own.open(self._assignment(self._plan.places[0]))))
            try:
                capacities = await asyncio.gather(*opening)
            finally:
                for task in opening:
                    task.cancel()
                await asyncio.gather(*opening, return_exceptions=True)
        except BaseException:
            await self.close()
            raise
        self._tasks += [asyncio.create_task(self._listen(client)) for client in self._clients]
        if self._clients:
            self._tasks += [asyncio.create_task(self._write(self._clients[0])), asyncio.create_task(self._ping())]
        return Capacity(
            min(capacity.slots for capacity in capacities),
            min(capacity.cells_per_slot for capacity in capacities),
            min(capacity.max_rows for capacity in capacities),
            min(capacity.exact_rows for capacity in capacities),
        )

    @property
    def pending(self) -> int:
        """Iterations that were sent and that the first stage has not passed on yet."""
        return self._sent - self._passed

    def send(self, iteration: Iteration, activations: Activations) -> None:
        """Put an iteration on its way; `activations` are its token embeddings, (rows, width) float32."""
        self._patience.sent(len(activations), time.perf_counter())
        self._sent += 1
        if self._own is None:
            self._outgoing.put(encode_iteration(iteration, activations, self._plan.dtype))
            return
        received = time.perf_counter()
        if self._clients:
            self._own.submit(lambda compute: compute.run(iteration, activations, received), self._computed_frame)
        else:
            self._own.submit(lambda compute: compute.step(iteration, activations, received), self._computed_result)

    def statuses(self) -> tuple[StageStatus, ...]:
        """Every stage, in order."""
        stages: list[StageClient | OwnStage] = list(self._clients)
        if self._own is not None:
            stages.insert(0, self._own)
        return tuple(
            stage.status(None if (seconds := self._compute_seconds.get(index)) is None else seconds * 1000)
            for index, stage in enumerate(stages)
        )

    async def close(self) -> None:
        """End the ring; stages go back to listening. Calling it twice is allowed."""
        self._over = True
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        # Who is cancelled while he waits leaves nothing half closed: it goes on, and the next call waits for it.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await asyncio.gather(*(client.close() for client in self._clients))
        if self._own is not None:
            await self._own.close()

    # ------------------------------------------------------------------------------------------------- forming

    def _assignment(self, place: StagePlace) -> Assignment:
        plan = self._plan
        following = plan.places[place.index + 1] if place.index + 1 < len(plan.places) else None
        return Assignment(
            place.index,
            len(plan.places),
            place.start,
            place.end,
            self._loader.layers,
            None if following is None else following.address,
            plan.slots,
            plan.cells_per_slot,
            plan.dtype,
            plan.delay_between(place, following),
            plan.delay_between(place, None),
            plan.trees,
            plan.mtp_head if place.end == self._loader.layers else "",
        )

    async def _open_client(self, client: StageClient) -> Capacity:
        plan = self._plan
        delay = plan.delay_between(None, client.place)
        return await client.open(plan.ring, self._loader.digest, self._assignment(client.place), delay)

    # ------------------------------------------------------------------------------------------------- running

    async def _listen(self, client: StageClient) -> None:
        client.link.take_early(lambda frame: self._take_early(client, frame))
        try:
            while True:
                frame = await client.receive()
                if self._over:
                    return
                self._take_frame(client, frame)
        except LongspanError as error:
            self._fail(client, f"{client.name} was lost: {error}")
        except Exception as error:
            self._fail(client, self._not_handled(client, error))

    def _take_early(self, client: StageClient, frame: Frame) -> bool:
        if frame.kind is not Kind.RESULT or self._over:
            return False
        client.heard()
        try:
            self._take_frame(client, frame)
        except Exception as error:
            self._fail(client, self._not_handled(client, error))
        return True

    def _take_frame(self, client: StageClient, frame: Frame) -> None:
        if frame.kind is Kind.RESULT:
            self._take(decode(frame, IterationResult))
        elif frame.kind is Kind.PASSED:
            self._passed = max(self._passed, decode(frame, Passed).count)
            self._on_room()
        elif frame.kind is Kind.FAILED:
            self._take_failure(client, decode(frame, Failed))
        else:
            raise ProtocolError(f"unexpected {frame.kind.name} frame")

    @staticmethod
    def _not_handled(client: StageClient, error: Exception) -> str:
        """A bug on this side; without an end of the ring its requests would wait for ever."""
        log.error("a frame of %s could not be handled", client.name, exc_info=error)
        return f"a frame of {client.name} could not be handled: {type(error).__name__}: {error}"

    def _take_failure(self, client: StageClient, failed: Failed) -> None:
        for other in self._clients:
            if other is not client and other.place.index == failed.stage:
                self._witnesses.add(client)
                text = f"{other.name} was lost: {failed.reason}"
                asyncio.get_running_loop().call_later(WITNESS_SECONDS, self._end, other, text)
                return
        self._fail(client, f"{client.name} failed: {failed.reason}")

    def _take(self, result: IterationResult) -> None:
        for timing in result.timings:
            if 0 <= timing.stage < len(self._plan.places):
                self._compute_seconds[timing.stage] = timing.finished - timing.started
        self._patience.returned(time.perf_counter())
        if len(self._plan.places) == 1:
            self._passed += 1
        self._on_result(result)

    def _computed_frame(self, frame: Frame | None, error: BaseException | None) -> None:
        if frame is None:
            self._fail_own(error)
            return
        try:
            self._outgoing.put(frame)
        except Exception as problem:
            self._fail_own(problem)

    def _computed_result(self, result: IterationResult | None, error: BaseException | None) -> None:
        if result is None:
            self._fail_own(error)
        elif not self._over:
            try:
                self._take(result)
            except Exception as problem:
                self._fail_own(problem)

    def _sent_on(self, _frame: Frame) -> None:
        """An iteration is on its way. The own stage has room only now: no full link is fed by what waits here."""
        if self._own is not None and not self._over:
            self._passed += 1
            self._on_room()

    async def _write(self, first: StageClient) -> None:
        try:
            await self._outgoing.run()
        except RingError as error:
            self._fail(first, f"{first.name} was lost: {error}")
        except Exception as error:
            assert self._own is not None
            self._fail_own(error)

    async def _ping(self) -> None:
        while not self._over:
            await asyncio.sleep(min(PING_SECONDS, self._silence / 4))
            for client in self._clients:
                if client.silence() > self._silence:
                    client.mute = True
                    self._fail(client, f"{client.name} was lost: it has not answered for {self._silence:g} s")
                else:
                    client.ping()
            if self._patience.overdue(time.perf_counter()):
                waited = self._patience.limit()
                self._fail(self._clients[-1], f"nothing has come out of the ring for {waited:.1f} s")

    @property
    def mute(self) -> frozenset[int]:
        """Stages that were given up because they said nothing; their processes may still be there."""
        return frozenset(client.place.index for client in self._clients if client.mute)

    # ----------------------------------------------------------------------------------------------- the end

    def _fail_own(self, error: BaseException | None) -> None:
        assert self._own is not None
        if not isinstance(error, LongspanError):
            log.error("%s failed", self._own.name, exc_info=error)
            error = RingError(f"{type(error).__name__}: {error}")
        self._fail(self._own, f"{self._own.name} failed: {error}")

    def _fail(self, stage: StageClient | OwnStage, reason: str) -> None:
        # A stage that has reported the loss of a neighbour closes its own links too; that did not happen first, and
        # the ring ends for the reason that it gave.
        if stage not in self._witnesses:
            self._end(stage, reason)

    def _end(self, stage: StageClient | OwnStage, reason: str) -> None:
        if self._over:
            return
        self._over = True
        stage.state, stage.detail = "failed", reason
        self._on_failure(RingError(reason))
