"""The engine's own thread: the ring, the requests and their streams, all on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from longspan.engine.answer import Answer
from longspan.engine.answers import Answers
from longspan.engine.counters import Counters
from longspan.engine.draft_runner import DraftRunner
from longspan.engine.flow import Flow
from longspan.engine.formation import Formation
from longspan.engine.healing import Healing
from longspan.engine.journal import Journal
from longspan.engine.options import EngineOptions
from longspan.engine.planning import limits_of, sequence_request, speculation_of
from longspan.engine.stream import RequestStream, deliver
from longspan.errors import LongspanError, RingError
from longspan.model.source import ModelSource
from longspan.model.tokenizer import Tokenizer
from longspan.request import GenerationRequest
from longspan.ring.driver import RingDriver
from longspan.ring.llama_loader import LlamaLoader
from longspan.ring.ring_plan import StagePlace
from longspan.runtime.base import Capacity
from longspan.schedule.limits import Limits
from longspan.schedule.planner import Planner
from longspan.schedule.policy import Policy
from longspan.schedule.span import IterationResult
from longspan.speculate.speculation import Speculation
from longspan.speculate.tree_speculation import TreeSpeculation
from longspan.status import EngineActivity, EngineStatistics, MemberStatus, StageStatus


class EngineCore:
    """Everything that changes while requests run. Only the engine's thread calls it.

    epoch: how often the ring has formed.
    """

    def __init__(
        self, options: EngineOptions, source: ModelSource, tokenizer: Tokenizer, report: Callable[[str], None]
    ) -> None:
        self._options = options
        self._tokenizer = tokenizer
        self._report = report
        self._formation = Formation(options, source)
        self._formation.on_return = self._change_ring
        self._vocabulary = source.description.vocabulary
        self._embedding = source.token_embedding(options.library)
        self._loader = LlamaLoader(
            source, threads=self._formation.threads, library=options.library, mtp_head=self._formation.mtp_head
        )
        self._driver: RingDriver | None = None
        self._first: StagePlace | None = None
        self._forming: asyncio.Task[Any] | None = None
        self._outdated = ""
        self._planner: Planner | None = None
        self._flow: Flow | None = None
        self._speculation: Speculation | TreeSpeculation | None = None
        self._draft_runner: DraftRunner | None = None
        if options.draft_model is not None and not self._formation.trees:
            self._draft_runner = DraftRunner(
                options, source, self._formation.threads, on_drafts=self._on_room, report=report
            )
        self._healing = Healing(
            clear=self._clear,
            form=self._form,
            on_formed=self._on_formed,
            on_given_up=self._fail_all,
            seconds=options.heal_seconds,
        )
        self._counters = Counters()
        self._answers = Answers(self._counters, self._stopped)
        self._journal = Journal(Path(options.trace) if options.trace is not None else None, self._round_trips)
        self.epoch = 0

    # ------------------------------------------------------------------------------------------------ ring

    async def start(self) -> Capacity:
        """Form the ring; its capacity. Raises LongspanError."""
        if self._draft_runner is not None:
            await self._draft_runner.find()
        capacity = await self._healing.first(patient=self._formation.patient)
        options = self._options
        policy = Policy(
            mixing=options.mixing,
            lanes=len(self._formation.ranges),
            cost_model=options.cost_model,
            queue_timeout=options.queue_timeout,
        )
        limits = self._limits(capacity)
        if self._draft_runner is not None:
            await self._draft_runner.start(limits.slots, limits.longest)
        self._speculation = speculation_of(
            options,
            limits,
            vocabulary=self._vocabulary,
            trees=self._formation.trees,
            proposer=None if self._draft_runner is None else self._draft_runner.proposer,
        )
        self._planner = Planner(limits, policy, self._speculation)
        self._flow = Flow(
            self._planner,
            None if self._speculation is None else self._speculation.ledger,
            self._embedding,
            self._vocabulary,
            self._answers,
            self._journal,
            serving=lambda: not self.missing,
            on_failure=self._on_failure,
        )
        self._flow.begin(*self._ring())
        return capacity

    async def stop(self) -> None:
        """End the ring and every request."""
        if self._draft_runner is not None:
            await self._draft_runner.close()
        await self._healing.stop()
        if self._flow is not None:
            self._flow.stop()
        self._fail_all(RingError("the engine has stopped"))
        if self._driver is not None:
            await self._driver.close()
        await self._formation.stop()
        self._journal.close()

    async def remove_stage(self, name: str) -> None:
        """Send a stage that has joined away for good. Raises UnknownStageError."""
        if await self._formation.remove(name):
            self._change_ring(f"the operator has removed stage {name}")

    def stages(self) -> tuple[StageStatus, ...]:
        """Every stage as it is now."""
        if self._driver is not None:
            return self._driver.statuses()
        return tuple(
            StageStatus(index, start, end, "", "missing")
            for index, (start, end) in enumerate(self._formation.ranges)
        )

    def members(self) -> tuple[MemberStatus, ...]:
        """Stages that have joined by themselves."""
        return self._formation.members()

    async def _form(self) -> Capacity:
        plan = await self._formation.plan(self._report)
        driver = RingDriver(
            plan,
            self._loader,
            on_result=self._on_result,
            on_room=self._on_room,
            on_failure=self._on_failure,
            on_progress=self._report,
            security=self._formation.security,
            artifacts=self._formation.artifacts,
            silence_seconds=self._options.silence_seconds,
        )
        self._driver, self._first = driver, plan.places[0]
        self._forming, self._outdated = asyncio.current_task(), ""
        try:
            capacity = await driver.form()
        except asyncio.CancelledError:
            if self._outdated and self._forming is not None and not self._forming.uncancel():
                raise RingError(self._outdated) from None
            raise
        finally:
            self._forming = None
        self.epoch += 1
        self._healing.complete()
        return capacity

    def _limits(self, capacity: Capacity) -> Limits:
        return limits_of(capacity, max_waiting=self._options.max_waiting)

    def _change_ring(self, reason: str) -> None:
        """A stage is another process now, or gone. A ring that forms is given up: it would wait for a ghost."""
        if self._forming is None:
            self._on_failure(RingError(reason))
        elif not self._outdated:
            self._outdated = reason
            self._forming.cancel()

    def _on_failure(self, error: RingError) -> None:
        self._healing.begin(error)

    async def _clear(self) -> None:
        """Take away what is left of a lost ring."""
        if self._driver is not None:
            await self._driver.close()
            await self._formation.replace(self._driver.mute)

    def _on_formed(self, capacity: Capacity) -> None:
        """The ring is back: running requests are replayed from their committed tokens and go on."""
        if self._flow is not None:  # else it was lost while the engine still starts, which begins with the newest
            self._flow.begin_again(*self._ring(), self._limits(capacity))

    def _ring(self) -> tuple[RingDriver, StagePlace]:
        assert self._driver is not None and self._first is not None
        return self._driver, self._first

    def _on_room(self) -> None:
        if self._flow is not None:
            self._flow.pump()

    def _on_result(self, result: IterationResult) -> None:
        assert self._flow is not None
        self._flow.take(result)

    @property
    def missing(self) -> tuple[str, ...]:
        """Sentences that say what keeps the engine from serving; empty when it serves."""
        return self._healing.missing

    @property
    def refusal(self) -> RingError | None:
        """Why a request cannot even wait for the ring, if that is so; may be read from any thread."""
        return self._healing.refusal

    # -------------------------------------------------------------------------------------------- requests

    def submit(self, request: GenerationRequest, stream: RequestStream) -> None:
        """Queue a request; errors reach its stream."""
        assert self._planner is not None and self._flow is not None
        now = self._flow.now()
        try:
            if self.refusal is not None:
                raise self.refusal
            end_tokens = frozenset(request.stop_token_ids)
            if not request.ignore_eos:
                end_tokens |= self._tokenizer.end_tokens
            sequence = self._planner.submit(sequence_request(request, end_tokens, now), now)
        except LongspanError as error:
            deliver([(stream, error)])
            return
        self._answers.add(sequence, Answer(request, end_tokens, self._tokenizer, stream, now))
        self._counters.prompt_tokens += len(request.prompt)
        self._flow.pump()

    def cancel(self, stream: RequestStream) -> None:
        """Stop a request; its last piece says "cancelled"."""
        if self._flow is None:
            return
        self._flow.settle()
        sequence = self._answers.sequence(stream)
        if sequence is not None:
            self._flow.cancel([sequence])
            self._answers.cancel(sequence)
            self._flow.pump()

    @property
    def outstanding(self) -> int:
        """Requests that run or wait; may be read from any thread."""
        return len(self._answers)

    def statistics(self) -> EngineStatistics:
        """Figures so far."""
        assert self._planner is not None and self._flow is not None
        now = self._flow.now()
        speculation = None if self._speculation is None else self._speculation.statistics(now)
        return self._counters.statistics(self._planner.statistics(now), speculation)

    def activity(self, moment: float) -> EngineActivity:
        """What goes on: figures, requests under way, and the iterations that completed after `moment`."""
        assert self._flow is not None
        now = self._flow.now()
        return EngineActivity(now, self.statistics(), self._answers.statuses(now), self._journal.since(moment))

    def _round_trips(self) -> dict[int, float]:
        return {
            stage.index: stage.round_trip_ms / 1000 for stage in self.stages() if stage.round_trip_ms is not None
        }

    def _fail_all(self, error: LongspanError) -> None:
        if self._flow is not None:
            self._flow.settle()
            self._flow.cancel(self._answers.sequences)
        self._answers.fail_all(error)

    def _stopped(self, sequence: int) -> None:
        assert self._flow is not None
        self._flow.finish(sequence)
