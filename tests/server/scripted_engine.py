"""An engine that answers from a script, with the real tokenizer and a real chat template over a tiny vocabulary."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from longspan.errors import LongspanError, UnknownStageError
from longspan.model.chat_template import ChatTemplate
from longspan.model.grammar import GrammarVocabulary
from longspan.model.tokenizer import Tokenizer
from longspan.request import GenerationRequest, Piece, Timings
from longspan.schedule.guard import GuardState
from longspan.schedule.statistics import ROW_BUCKETS, PlannerStatistics
from longspan.schedule.trace import TraceRecord
from longspan.status import (
    EngineActivity,
    EngineStatistics,
    MemberStatus,
    Readiness,
    RequestStatus,
    RingStatus,
    StageStatus,
)
from tests.tiny_models import CHAT_TEMPLATE

Step = Piece | Exception | float | asyncio.Event
"""What a stream does next: give a piece, raise, sleep so many seconds, or wait."""
Script = Callable[[GenerationRequest], Sequence[Step]]

CONTEXT = 64


def always(*steps: Step) -> Script:
    """The same steps whatever is asked."""
    return lambda request: steps


@dataclasses.dataclass
class Model:
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    id: str = "Tiny-Model"
    root: str = "models/tiny.gguf"
    created: int = 1_700_000_000
    context_length: int = CONTEXT

    @functools.cached_property
    def grammars(self) -> GrammarVocabulary:
        return GrammarVocabulary(self.tokenizer)


class ScriptedStream:
    """Follows its steps until it is cancelled."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._cancelled = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.timings: Timings | None = None
        self.given = 0

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        self._loop.call_soon_threadsafe(self._cancelled.set)

    async def __aiter__(self) -> AsyncIterator[Piece]:
        for step in self._steps:
            if isinstance(step, float):
                await self._unless_cancelled(asyncio.sleep(step))
            elif isinstance(step, asyncio.Event):
                await self._unless_cancelled(step.wait())
            if self.cancelled:
                yield Piece("", (), finish_reason="cancelled")
                return
            if isinstance(step, Exception):
                raise step
            if isinstance(step, Piece):
                self.given += 1
                if step.finish_reason is not None:
                    self.timings = Timings(0.5, 0.75, 2.0, 7, 3, 5)
                yield msgspec.structs.replace(step, at=time.perf_counter())

    async def _unless_cancelled(self, waiting: Any) -> None:
        tasks = [asyncio.ensure_future(waiting), asyncio.ensure_future(self._cancelled.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()


class ScriptedEngine:
    """Keeps what it was asked. refuse: raised by `submit`. fail: raised by everything that looks at the model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.reset()

    def reset(self) -> None:
        self.served = Model(self._tokenizer, ChatTemplate(CHAT_TEMPLATE))
        self.script: Script = lambda request: [Piece("fine", (5, 6), finish_reason="stop")]
        self.refuse: Exception | None = None
        self.fail: Exception | None = None
        self.missing: tuple[str, ...] = ()
        self.requests: list[GenerationRequest] = []
        self.streams: list[ScriptedStream] = []
        self.records: list[TraceRecord] = []
        self.members = ["garage", "attic", "cellar"]
        self.now = 100.0

    @property
    def model(self) -> Model:
        if self.fail is not None:
            raise self.fail
        return self.served

    def submit(self, request: GenerationRequest) -> ScriptedStream:
        if self.refuse is not None and (isinstance(self.refuse, LongspanError) or self.requests):
            raise self.refuse
        self.requests.append(request)
        self.streams.append(ScriptedStream(self.script(request)))
        return self.streams[-1]

    def ring(self) -> RingStatus:
        stages = (
            StageStatus(0, 0, 2, "in this process", "ready", compute_ms=4.0, memory_bytes=1000),
            StageStatus(1, 2, 4, "127.0.0.1:4242", "ready", round_trip_ms=50.0),
        )
        members = tuple(
            MemberStatus(name, f"192.0.2.{index}:7000", index if index < 2 else None)
            for index, name in enumerate(self.members)
        )
        return RingStatus(self.model.id, "ab" * 32, 3, 4, stages, 25.0, members)

    async def remove_stage(self, name: str) -> None:
        if name not in self.members:
            raise UnknownStageError(f"no stage {name!r} has joined; there is {', '.join(self.members)}")
        self.members.remove(name)

    def readiness(self) -> Readiness:
        return Readiness(not self.missing, self.missing)

    def activity(self, moment: float) -> EngineActivity:
        requests = (
            RequestStatus(7, "generating", 12, 4, 20, 64, 1.5, 25.0),
            RequestStatus(8, "waiting", 30, 0, 0, 16, 0.5, 0.0),
        )
        recent = tuple(record for record in self.records if record.completed_at > moment)
        return EngineActivity(self.now, self.statistics(), requests, recent)

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(
            running=2,
            waiting=3,
            kv_usage=0.25,
            slots=8,
            free_slots=6,
            in_flight=1,
            requests_finished=9,
            requests_failed=1,
            requests_cancelled=4,
            prompt_tokens=111,
            generated_tokens=222,
            iterations=50,
            mixed_iterations=5,
            iteration_rows=400,
            preemptions=2,
            planner=PLANNER,
        )


PLANNER = PlannerStatistics(
    running=2,
    decoding=1,
    waiting=3,
    in_flight=1,
    slots=8,
    kv_cells_used=100,
    kv_cells=400,
    cached_slots=1,
    prefix_queries=90,
    prefix_hits=30,
    preemptions=2,
    iterations=50,
    mixed_iterations=5,
    prefill_only_iterations=4,
    rows_histogram=(10, 20, *[0] * (len(ROW_BUCKETS) - 2), 20),
    decode_rows=200,
    prefill_rows=150,
    recompute_rows=50,
    joined_prefill_rows=40,
    occupancy=0.5,
    guard=GuardState.SUSPENDED,
    guard_breaches=3,
    guard_suspensions=1,
    decode_debt=0.25,
    prediction_error=0.125,
    oldest_wait=1.5,
    longest_wait=2.5,
    most_overtakes=6,
    stray_results=0,
    finished={"stop": 9},
    failed={},
)
