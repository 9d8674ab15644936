"""The coordinator's side of the ring: forms it, feeds the first stage, takes results from the last."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from longspan.errors import LongspanError, RingError
from longspan.ring.frame import Frame, Kind
from longspan.ring.link import Link
from longspan.ring.loader import StageLoader
from longspan.ring.messages import Assignment, Failed, Passed, decode, encode_iteration
from longspan.ring.ring_plan import RingPlan, StagePlace
from longspan.ring.stage_client import StageClient
from longspan.ring.stage_compute import StageCompute
from longspan.ring.worker import Worker
from longspan.runtime.base import Activations, Capacity, StageRuntime
from longspan.schedule.span import Iteration, IterationResult
from longspan.status import StageStatus

PING_SECONDS = 1.0
"""Pings measure the round trip and keep TCP's window from closing on an idle link."""


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
    ) -> None:
        self._plan = plan
        self._loader = loader
        self._on_result = on_result
        self._on_room = on_room
        self._on_failure = on_failure
        self._on_progress = on_progress
        self._clients: list[StageClient] = []
        self._first: Link | None = None
        self._worker: Worker | None = None
        self._runtime: StageRuntime | None = None
        self._compute: StageCompute | None = None
        self._outgoing: asyncio.Queue[Frame] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._local_state = "loading"
        self._compute_seconds: dict[int, float] = {}
        self._sent = 0
        self._passed = 0
        self._over = False

    async def form(self) -> Capacity:
        """Connect every stage, let them load, open the links between them; what the ring as a whole can hold.

        Raises RingError (or what a stage refused with), naming the stage; then everything is closed again.
        """
        plan = self._plan
        self._clients = [
            StageClient(place, self._on_progress) for place in plan.places if place.address is not None
        ]
        try:
            opening = [asyncio.create_task(self._open_client(client)) for client in self._clients]
            if plan.places[0].address is None:
                opening.append(asyncio.create_task(self._open_local(plan.places[0])))
            try:
                capacities = await asyncio.gather(*opening)
            finally:
                for task in opening:
                    task.cancel()
                await asyncio.gather(*opening, return_exceptions=True)
        except BaseException:
            await self.close()
            raise
        for client in self._clients:
            self._tasks.append(asyncio.create_task(self._listen(client)))
        if self._clients:
            self._first = self._clients[0].link
            self._tasks += [asyncio.create_task(self._write()), asyncio.create_task(self._ping())]
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
        self._sent += 1
        received = time.perf_counter()
        if self._compute is None:
            self._outgoing.put_nowait(encode_iteration(iteration, activations, self._plan.dtype))
            return
        assert self._worker is not None
        compute = self._compute
        if self._clients:
            self._worker.submit(lambda: compute.run(iteration, activations, received), self._computed_frame)
        else:
            self._worker.submit(lambda: compute.step(iteration, activations, received), self._computed_result)

    def statuses(self) -> tuple[StageStatus, ...]:
        """Every stage, in order."""
        remote = {client.place.index: client for client in self._clients}
        found: list[StageStatus] = []
        for place in self._plan.places:
            compute = self._compute_seconds.get(place.index)
            compute_ms = None if compute is None else compute * 1000
            if place.index in remote:
                found.append(remote[place.index].status(compute_ms))
                continue
            capacity = self._runtime.capacity() if self._runtime is not None else None
            found.append(
                StageStatus(
                    place.index,
                    place.start,
                    place.end,
                    "in this process",
                    self._local_state,
                    compute_ms=compute_ms,
                    slots=capacity.slots if capacity else None,
                    cells_per_slot=capacity.cells_per_slot if capacity else None,
                    exact_rows=capacity.exact_rows if capacity else None,
                )
            )
        return tuple(found)

    async def close(self) -> None:
        """End the ring; stages go back to listening. Calling it twice is allowed."""
        self._over = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await asyncio.gather(*(client.close() for client in self._clients))
        worker, self._worker = self._worker, None
        runtime, self._runtime = self._runtime, None
        self._compute = None
        if worker is not None:
            if runtime is not None:
                await worker.call(runtime.close)
            await worker.stop()

    async def _open_client(self, client: StageClient) -> Capacity:
        plan, place = self._plan, client.place
        following = plan.places[place.index + 1] if place.index + 1 < len(plan.places) else None
        assignment = Assignment(
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
        )
        return await client.open(plan.ring, self._loader.digest, assignment, plan.delay_between(None, place))

    async def _open_local(self, place: StagePlace) -> Capacity:
        plan = self._plan
        self._worker = Worker("longspan-stage-0")
        assignment = Assignment(
            0,
            len(plan.places),
            place.start,
            place.end,
            self._loader.layers,
            None,
            plan.slots,
            plan.cells_per_slot,
            plan.dtype,
        )
        loop = asyncio.get_running_loop()

        def report(text: str) -> None:
            loop.call_soon_threadsafe(self._on_progress, f"stage 0: {text}")

        runtime: StageRuntime = await self._worker.call(lambda: self._loader.load(assignment, report))
        self._runtime = runtime
        self._compute = StageCompute(runtime, 0, self._loader.width, plan.dtype)
        self._local_state = "ready"
        return runtime.capacity()

    async def _listen(self, client: StageClient) -> None:
        try:
            while True:
                frame = await client.receive()
                if frame.kind is Kind.RESULT:
                    self._take(decode(frame, IterationResult))
                elif frame.kind is Kind.PASSED:
                    self._passed = decode(frame, Passed).count
                    self._on_room()
                elif frame.kind is Kind.FAILED:
                    raise RingError(f"{client.name}: {decode(frame, Failed).reason}")
        except LongspanError as error:
            client.state = "failed"
            client.detail = str(error)
            self._fail(error if isinstance(error, RingError) else RingError(str(error)), client.name)

    def _take(self, result: IterationResult) -> None:
        for timing in result.timings:
            self._compute_seconds[timing.stage] = timing.finished - timing.started
        if len(self._plan.places) == 1:
            self._passed += 1
        self._on_result(result)

    def _computed_frame(self, frame: Frame | None, error: BaseException | None) -> None:
        self._passed += 1
        if frame is None or error is not None:
            self._fail(_as_ring_error(error), "stage 0 in this process")
            return
        self._outgoing.put_nowait(frame)
        if not self._over:
            self._on_room()

    def _computed_result(self, result: IterationResult | None, error: BaseException | None) -> None:
        if result is None or error is not None:
            self._fail(_as_ring_error(error), "stage 0 in this process")
        elif not self._over:
            self._take(result)

    async def _write(self) -> None:
        assert self._first is not None
        try:
            while True:
                await self._first.send(await self._outgoing.get())
        except RingError as error:
            self._fail(error, self._clients[0].name)

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_SECONDS)
            for client in self._clients:
                await client.ping()

    def _fail(self, error: RingError, who: str) -> None:
        if self._over:
            return
        self._over = True
        self._on_failure(RingError(f"{who} was lost: {error}"))


def _as_ring_error(error: BaseException | None) -> RingError:
    return error if isinstance(error, RingError) else RingError(f"{type(error).__name__}: {error}")
