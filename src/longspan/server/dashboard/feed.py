"""One look at the engine for all who watch: frames at a low rate, and none when nobody watches."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

import msgspec

from longspan.errors import LongspanError
from longspan.schedule.clocks import estimate_clocks
from longspan.schedule.trace import TraceRecord
from longspan.server.contract import ServingEngine
from longspan.server.dashboard.frame import MOST_TRIPS, SHOWN_SECONDS, Trip, dashboard_frame, trips_of
from longspan.status import EngineActivity

FRAME_SECONDS = 0.5
MOST_VIEWERS = 64
CLOCK_RECORDS = 64
"""Iterations from which clocks are estimated."""

_END = b"end"


class DashboardFeed:
    """Looks at the engine twice a second while somebody watches; every viewer gets the same bytes."""

    def __init__(self, engine: ServingEngine) -> None:
        self._engine = engine
        self._viewers: set[asyncio.Queue[bytes]] = set()
        self._task: asyncio.Task[None] | None = None
        self._latest = b""
        self._before: EngineActivity | None = None
        self._known: deque[TraceRecord] = deque(maxlen=CLOCK_RECORDS)
        self._trips: deque[Trip] = deque(maxlen=MOST_TRIPS)

    @property
    def full(self) -> bool:
        """Whether nobody else may watch."""
        return len(self._viewers) >= MOST_VIEWERS

    async def frames(self) -> AsyncIterator[bytes]:
        """JSON documents, the newest one first. A viewer who does not keep up misses some."""
        queue: asyncio.Queue[bytes] = asyncio.Queue(maxsize=1)
        self._viewers.add(queue)
        try:
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._run())
            elif self._latest:
                queue.put_nowait(self._latest)
            while (frame := await queue.get()) is not _END:
                yield frame
        finally:
            self._viewers.discard(queue)
            if not self._viewers:
                self._latest = b""  # whoever comes next shall not see how it was

    def end(self) -> None:
        """End every viewer's stream."""
        for queue in self._viewers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(_END)

    async def close(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while self._viewers:
            self._latest = await self._frame()
            for queue in self._viewers:
                if queue.full() and queue.get_nowait() is _END:
                    queue.put_nowait(_END)
                else:
                    queue.put_nowait(self._latest)
            await asyncio.sleep(FRAME_SECONDS)
        self._latest, self._before = b"", None
        self._known.clear()
        self._trips.clear()

    async def _frame(self) -> bytes:
        try:
            moment = self._before.now if self._before is not None else 0.0
            now = await asyncio.to_thread(self._engine.activity, moment)
            self._draw(now)
            before, self._before = self._before, now
            frame = dashboard_frame(self._engine.ring(), self._engine.readiness(), before, now, self._trips)
        except (LongspanError, TimeoutError) as error:
            return msgspec.json.encode({"error": str(error) or "the engine does not answer"})
        return msgspec.json.encode(frame)

    def _draw(self, now: EngineActivity) -> None:
        """Take the new iterations into the timeline. Each is brought to the coordinator's clock once."""
        stages = len(now.iterations[-1].stages) if now.iterations else 0
        if self._known and stages and len(self._known[-1].stages) != stages:
            self._known.clear()
        self._known += (record for record in now.iterations if len(record.stages) == stages)
        if now.iterations:
            self._trips += trips_of(now.iterations, estimate_clocks(list(self._known)))
        while self._trips and self._trips[0].completed < now.now - SHOWN_SECONDS:
            self._trips.popleft()
