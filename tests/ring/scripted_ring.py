"""Rings of scripted stages over real sockets: everything is real but the arithmetic."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Self

import msgspec
import numpy as np

from longspan.errors import RingError
from longspan.ring.driver import RingDriver
from longspan.ring.loader import StageLoader
from longspan.ring.messages import Assignment
from longspan.ring.ring_plan import RingPlan, StagePlace
from longspan.ring.security import OPEN, Security
from longspan.ring.stage_server import StageServer
from longspan.runtime.base import Capacity, StageRuntime
from longspan.runtime.script import Script
from longspan.runtime.scripted import FailSpan, RaiseError, ScriptedEmbedding, ScriptedRuntime
from longspan.sampling.parameters import SamplingParameters
from longspan.schedule.events import Event, Failed, Finished, Preempted, TokensCommitted
from longspan.schedule.limits import Limits
from longspan.schedule.planner import Planner
from longspan.schedule.policy import Policy
from longspan.schedule.request import SequenceRequest
from longspan.schedule.span import Iteration, IterationResult
from longspan.speculate.speculation import Speculation

DIGEST = "5c" * 32
LAYERS = 6
WIDTH = 16
SCRIPT = Script()
GREEDY = SamplingParameters()
SLOTS = 4
CELLS = 256

Fault = FailSpan | RaiseError


class ScriptedLoader(StageLoader):
    """A `StageLoader` of a scripted model of LAYERS layers.

    loads: every assignment that was loaded. open: runtimes that were not closed yet.
    """

    def __init__(
        self,
        script: Script = SCRIPT,
        *,
        digest: str = DIGEST,
        width: int = WIDTH,
        layers: int = LAYERS,
        max_rows: int = 64,
        exact_rows: int = 32,
        seconds: float = 0.0,
        faults: Sequence[Fault] = (),
        load_error: Exception | None = None,
    ) -> None:
        self.digest = digest
        self.layers = layers
        self.width = width
        self.dtypes: tuple[str, ...] = ("float32", "float16")
        self.load_error = load_error
        self.loads: list[Assignment] = []
        self.open = 0
        self.make: Callable[[Assignment], StageRuntime] = lambda assignment: _Counted(
            self,
            script,
            last=assignment.end == layers,
            capacity=Capacity(assignment.slots, assignment.cells_per_slot, max_rows, exact_rows),
            width=width,
            seconds_per_iteration=seconds,
            faults=faults,
        )

    def load(self, assignment: Assignment, report: Callable[[str], None]) -> StageRuntime:
        report("thinking of a number")
        if self.load_error is not None:
            raise self.load_error
        self.loads.append(assignment)
        self.open += 1
        return self.make(assignment)

    def free_bytes(self) -> int:
        return 1 << 30


class _Counted(ScriptedRuntime):
    def __init__(self, loader: ScriptedLoader, script: Script, **fields: object) -> None:
        super().__init__(script, **fields)  # type: ignore[arg-type]
        self._loader: ScriptedLoader | None = loader

    def close(self) -> None:
        super().close()
        if self._loader is not None:
            self._loader.open -= 1
            self._loader = None


@contextlib.asynccontextmanager
async def stage_servers(*loaders: ScriptedLoader) -> AsyncIterator[list[StageServer]]:
    """One listening stage a loader."""
    servers = [StageServer(loader) for loader in loaders]
    try:
        for server in servers:
            await server.start("127.0.0.1", 0)
        yield servers
    finally:
        await asyncio.gather(*(server.close() for server in servers))


def ring_plan(
    ports: Sequence[int],
    *,
    hold_first: bool = False,
    delay_ms: float = 0.0,
    dtype: str = "float32",
    slots: int = SLOTS,
    cells: int = CELLS,
    ring: str = "ring",
) -> RingPlan:
    """Layers shared out evenly over this process (hold_first) and stages at the ports."""
    addresses: list[tuple[str, int] | None] = [("127.0.0.1", port) for port in ports]
    if hold_first:
        addresses.insert(0, None)
    count = len(addresses)
    places = tuple(
        StagePlace(index, LAYERS * index // count, LAYERS * (index + 1) // count, address, near=address is None)
        for index, address in enumerate(addresses)
    )
    return RingPlan(ring, places, slots, cells, dtype, delay_ms)


@dataclasses.dataclass
class Answer:
    """What became of one request."""

    tokens: list[int] = dataclasses.field(default_factory=list)
    ended: str = ""


class Coordinator:
    """Planner and driver without an engine: prompts in, tokens out.

    iterations, results: everything that went out and came back, in order. failures: calls of on_failure.
    rooms: calls of on_room. preempted: how often each sequence lost its slot. stale_spans: came back after their
    sequence had lost its slot. after_result: called after each result was taken.
    """

    def __init__(
        self,
        plan: RingPlan,
        loader: ScriptedLoader,
        *,
        policy: Policy | None = None,
        backlog: int = 2,
        chunk: int = 8,
        limits: Mapping[str, int] | None = None,
        script: Script = SCRIPT,
        speculation: Speculation | None = None,
        planner: type[Planner] = Planner,
        security: Security = OPEN,
    ) -> None:
        self.driver = RingDriver(
            plan,
            loader,
            on_result=self._on_result,
            on_room=self._on_room,
            on_failure=self._on_failure,
            on_progress=lambda text: self.progress.append(text),
            security=security,
        )
        self.progress: list[str] = []
        self.iterations: list[Iteration] = []
        self.results: list[IterationResult] = []
        self.failures: list[RingError] = []
        self.rooms = 0
        self.preempted: collections.Counter[int] = collections.Counter()
        self.stale_spans = 0
        self.answers: dict[int, Answer] = {}
        self.after_result: Callable[[IterationResult], None] = lambda result: None
        self.after_preemption: Callable[[int], None] = lambda sequence: None
        self.capacity: Capacity | None = None
        self._policy = policy or Policy(lanes=len(plan.places))
        self._backlog = backlog
        self._chunk = chunk
        self._limits = dict(limits or {})
        self._embedding = ScriptedEmbedding(script.vocabulary, loader.width)
        self._changed = asyncio.Event()
        self._speculation = speculation
        self._planner_type = planner
        self.planner: Planner

    async def __aenter__(self) -> Self:
        self.capacity = capacity = await self.driver.form()
        limits = {
            "slots": capacity.slots,
            "cells_per_slot": capacity.cells_per_slot,
            "exact_rows": capacity.exact_rows,
            "max_rows": capacity.max_rows,
            "chunk": self._chunk,
            **self._limits,
        }
        self.planner = self._planner_type(Limits(**limits), self._policy, self._speculation)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.driver.close()

    def submit(
        self, prompt: Sequence[int], count: int, sampling: SamplingParameters = GREEDY, **fields: object
    ) -> Answer:
        sampling = msgspec.structs.replace(sampling, prompt_length=len(prompt))
        request = SequenceRequest(prompt=tuple(prompt), max_tokens=count, sampling=sampling, **fields)  # type: ignore[arg-type]
        answer = Answer()
        self.answers[self.planner.submit(request, 0.0)] = answer
        self.pump()
        return answer

    async def finish(self, seconds: float = 20.0) -> None:
        """Wait until every answer has ended, or the ring has."""
        async with asyncio.timeout(seconds):
            while not self.failures and not all(answer.ended for answer in self.answers.values()):
                self._changed.clear()
                await self._changed.wait()

    async def results_reach(self, count: int, seconds: float = 20.0) -> None:
        """Wait until this many results have come back."""
        async with asyncio.timeout(seconds):
            while len(self.results) < count:
                self._changed.clear()
                await self._changed.wait()

    async def failure(self, seconds: float = 20.0) -> str:
        """Wait until the ring has failed; why."""
        async with asyncio.timeout(seconds):
            while not self.failures:
                self._changed.clear()
                await self._changed.wait()
        return str(self.failures[0])

    def pump(self) -> None:
        while not self.failures and self.driver.pending < self._backlog:
            iteration = self.planner.plan(0.0)
            if iteration is None:
                break
            self.iterations.append(iteration)
            tokens = iteration.tokens
            self.driver.send(iteration, self._embedding.rows(np.array(tokens, np.int32)))
        self._take(self.planner.take_events())

    def _on_result(self, result: IterationResult) -> None:
        self.results.append(result)
        # A sequence's epoch is how often it lost its slot.
        spans = self.iterations[result.iteration].spans
        self.stale_spans += sum(span.epoch < self.preempted[span.sequence] for span in spans)
        self._take(self.planner.complete(result, 0.0))
        self.after_result(result)
        self.pump()

    def _on_room(self) -> None:
        self.rooms += 1
        self.pump()

    def _on_failure(self, error: RingError) -> None:
        self.failures.append(error)
        self._changed.set()

    def _take(self, events: list[Event]) -> None:
        for event in events:
            answer = self.answers[event.sequence]
            if isinstance(event, TokensCommitted):
                answer.tokens += event.tokens
            elif isinstance(event, Finished):
                answer.ended = str(event.reason)
            elif isinstance(event, Preempted):
                self.preempted[event.sequence] += 1
                self.after_preemption(event.sequence)
            elif isinstance(event, Failed):
                answer.ended = event.reason
        self._changed.set()
