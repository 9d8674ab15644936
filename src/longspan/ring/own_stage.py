"""The first stage when the coordinator's own process holds it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from longspan.ring.loader import StageLoader
from longspan.ring.messages import Assignment
from longspan.ring.ring_plan import StagePlace
from longspan.ring.stage_compute import StageCompute
from longspan.ring.worker import Worker
from longspan.runtime.base import Capacity, StageRuntime
from longspan.status import StageStatus


class OwnStage:
    """Runs its layers on a thread of its own. state, detail: for a person."""

    def __init__(self, place: StagePlace, loader: StageLoader, on_progress: Callable[[str], None]) -> None:
        self.name = f"stage {place.index} (layers {place.start}-{place.end}, in this process)"
        self.state = "loading"
        self.detail = ""
        self._place = place
        self._loader = loader
        self._on_progress = on_progress
        self._worker: Worker | None = None
        self._runtime: StageRuntime | None = None
        self._compute: StageCompute | None = None

    async def open(self, assignment: Assignment) -> Capacity:
        """Load the layers. Raises LongspanError."""
        loop = asyncio.get_running_loop()
        self._worker = worker = Worker(f"longspan-stage-{assignment.stage}")

        def report(text: str) -> None:
            loop.call_soon_threadsafe(self._on_progress, f"stage {assignment.stage}: {text}")

        def load() -> StageRuntime:
            # Kept from here, so that `close` releases it also when nobody waited for it to be loaded.
            self._runtime = runtime = self._loader.load(assignment, report)
            return runtime

        runtime: StageRuntime = await worker.call(load)
        self._compute = StageCompute(runtime, assignment.stage, self._loader.width, assignment.dtype)
        self.state = "ready"
        return runtime.capacity()

    def submit(
        self, work: Callable[[StageCompute], Any], done: Callable[[Any, BaseException | None], None]
    ) -> None:
        """Run `work` after everything submitted before, then `done(result, error)` on the loop."""
        assert self._compute is not None and self._worker is not None
        compute = self._compute
        self._worker.submit(lambda: work(compute), done)

    def status(self, compute_ms: float | None) -> StageStatus:
        """The stage for a person."""
        capacity = self._runtime.capacity() if self._compute is not None and self._runtime is not None else None
        return StageStatus(
            self._place.index,
            self._place.start,
            self._place.end,
            "in this process",
            self.state,
            self.detail,
            compute_ms=compute_ms,
            slots=capacity.slots if capacity else None,
            cells_per_slot=capacity.cells_per_slot if capacity else None,
            exact_rows=capacity.exact_rows if capacity else None,
        )

    async def close(self) -> None:
        """Let what was submitted finish, then release the layers. Calling it twice is allowed."""
        self._compute = None
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.call(self._release)
            await worker.stop()

    def _release(self) -> None:
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            runtime.close()
