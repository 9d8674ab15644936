"""The engine's own thread: the planner, the ring and the streams, all on one event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from longspan.engine.answer import Answer
from longspan.engine.answers import Answers
from longspan.engine.counters import Counters
from longspan.engine.formation import Formation
from longspan.engine.healing import Healing
from longspan.engine.journal import Journal
from longspan.engine.options import EngineOptions
from longspan.engine.stream import RequestStream, deliver
from longspan.errors import LongspanError, RingError
from longspan.model.source import ModelSource
from longspan.model.tokenizer import Tokenizer
from longspan.request import GenerationRequest
from longspan.ring.driver import RingDriver
from longspan.ring.llama_loader import LlamaLoader
from longspan.runtime.base import Capacity
from longspan.schedule.events import Event, FinishReason
from longspan.schedule.limits import Limits
from longspan.schedule.planner import Planner
from longspan.schedule.policy import Policy
from longspan.schedule.request import SequenceRequest
from longspan.schedule.span import IterationResult, SpanFailure
from longspan.speculate.proposers import proposer_maker
from longspan.speculate.speculation import Speculation, SpeculationPolicy
from longspan.speculate.tree_speculation import TreeSpeculation
from longspan.status import EngineActivity, EngineStatistics, StageStatus

FAR_BACKLOG = 3
"""Iterations that may wait for a first stage that is far away; beside the coordinator one is enough, because it
says at once when it can take the next."""

SETTLE_SECONDS = 0.001
"""How long after an iteration was sent its stage, in this process, has the interpreter for itself."""


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
        self._formation.on_return = lambda reason: self._on_failure(RingError(reason))
        self._vocabulary = source.description.vocabulary
        self._embedding = source.token_embedding(options.library)
        self._loader = LlamaLoader(
            source, threads=self._formation.threads, library=options.library, mtp_head=self._formation.drafts
        )
        self._driver: RingDriver | None = None
        self._planner: Planner | None = None
        self._speculation: Speculation | TreeSpeculation | None = None
        self._events: list[Event] = []
        self._settling: asyncio.TimerHandle | None = None
        self._works_here = False
        self._backlog = FAR_BACKLOG
        self._timer: asyncio.TimerHandle | None = None
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
        capacity = await self._healing.first(patient=self._formation.patient)
        options = self._options
        policy = Policy(
            mixing=options.mixing,
            lanes=len(self._formation.ranges),
            cost_model=options.cost_model,
            queue_timeout=options.queue_timeout,
        )
        limits = self._limits(capacity)
        self._speculation = self._make_speculation(limits)
        self._planner = Planner(limits, policy, self._speculation)
        return capacity

    async def stop(self) -> None:
        """End the ring and every request."""
        await self._healing.stop()
        if self._timer is not None:
            self._timer.cancel()
        self._fail_all(RingError("the engine has stopped"))
        if self._driver is not None:
            await self._driver.close()
        await self._formation.stop()
        self._journal.close()

    async def remove_stage(self, name: str) -> None:
        """Send a stage that has joined away for good. Raises UsageError."""
        if await self._formation.remove(name):
            self._on_failure(RingError(f"the operator has removed stage {name}"))

    def stages(self) -> tuple[StageStatus, ...]:
        """Every stage as it is now."""
        if self._driver is not None:
            return self._driver.statuses()
        return tuple(
            StageStatus(index, start, end, "", "missing")
            for index, (start, end) in enumerate(self._formation.ranges)
        )

    async def _form(self) -> Capacity:
        plan = await self._formation.plan(self._report)
        driver = RingDriver(
            plan,
            self._loader,
            on_result=self._on_result,
            on_room=self._pump,
            on_failure=self._on_failure,
            on_progress=self._report,
            security=self._formation.security,
            artifacts=self._formation.artifacts,
            silence_seconds=self._options.silence_seconds,
        )
        self._driver = driver
        capacity = await driver.form()
        self._backlog = 1 if plan.places[0].near else FAR_BACKLOG
        self._works_here = plan.places[0].address is None
        self.epoch += 1
        self._healing.complete()
        return capacity

    def _make_speculation(self, limits: Limits) -> Speculation | TreeSpeculation | None:
        options = self._options
        if self._formation.trees:
            return TreeSpeculation(rows=limits.free_rows, vocabulary=self._vocabulary)
        if options.proposer == "none":
            return None
        return Speculation(
            SpeculationPolicy(proposer=options.proposer, width=options.width, depth=options.depth),
            proposer_maker(options.proposer),
            rows=limits.free_rows,
            vocabulary=self._vocabulary,
        )

    def _limits(self, capacity: Capacity) -> Limits:
        free = max(1, min(capacity.exact_rows - 1, capacity.max_rows))
        return Limits(
            slots=capacity.slots,
            cells_per_slot=capacity.cells_per_slot,
            exact_rows=capacity.exact_rows,
            max_rows=capacity.max_rows,
            # Chunks below the exact-row limit cost no throughput on a CPU, and every cut of a prompt is exact.
            chunk=free,
            max_waiting=self._options.max_waiting,
        )

    def _on_failure(self, error: RingError) -> None:
        self._healing.begin(error)

    async def _clear(self) -> None:
        """Take away what is left of a lost ring."""
        if self._driver is not None:
            await self._driver.close()
            await self._formation.replace(self._driver.mute)

    def _on_formed(self, capacity: Capacity) -> None:
        """The ring is back: running requests are replayed from their committed tokens and go on."""
        assert self._planner is not None
        self._events += self._planner.abandon(self._now(), self._limits(capacity))
        self._pump()

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
        assert self._planner is not None
        now = self._now()
        try:
            if self.refusal is not None:
                raise self.refusal
            end_tokens = frozenset(request.stop_token_ids)
            if not request.ignore_eos:
                end_tokens |= self._tokenizer.end_tokens
            sequence = self._planner.submit(_sequence_request(request, end_tokens, now), now)
        except LongspanError as error:
            deliver([(stream, error)])
            return
        self._answers.add(sequence, Answer(request, end_tokens, self._tokenizer, stream, now))
        self._counters.prompt_tokens += len(request.prompt)
        self._pump()

    def cancel(self, stream: RequestStream) -> None:
        """Stop a request; its last piece says "cancelled"."""
        if self._planner is None:
            return
        self._settle()
        sequence = self._answers.sequence(stream)
        if sequence is not None:
            self._planner.cancel(sequence, self._now())
            self._answers.cancel(sequence)
            self._pump()

    @property
    def outstanding(self) -> int:
        """Requests that run or wait; may be read from any thread."""
        return len(self._answers)

    def statistics(self) -> EngineStatistics:
        """Figures so far."""
        assert self._planner is not None
        now = self._now()
        speculation = None if self._speculation is None else self._speculation.statistics(now)
        return self._counters.statistics(self._planner.statistics(now), speculation)

    def activity(self, moment: float) -> EngineActivity:
        """What goes on: figures, requests under way, and the iterations that completed after `moment`."""
        now = self._now()
        return EngineActivity(now, self.statistics(), self._answers.statuses(now), self._journal.since(moment))

    def _round_trips(self) -> dict[int, float]:
        return {
            stage.index: stage.round_trip_ms / 1000 for stage in self.stages() if stage.round_trip_ms is not None
        }

    def _fail_all(self, error: LongspanError) -> None:
        if self._planner is not None:
            self._settle()
            for sequence in self._answers.sequences:
                self._planner.cancel(sequence, self._now())
        self._answers.fail_all(error)

    def _stopped(self, sequence: int) -> None:
        assert self._planner is not None
        self._planner.finish(sequence, FinishReason.STOP, self._now())

    # ---------------------------------------------------------------------------------------------- the loop

    def _pump(self) -> None:
        """Plan and send while the first stage can take work."""
        planner, driver = self._planner, self._driver
        if planner is None or driver is None or self.missing:
            return
        while driver.pending < self._backlog:
            iteration = planner.plan(self._now())
            if iteration is None:
                break
            tokens = np.array([token for span in iteration.spans for token in span.tokens], np.int32)
            driver.send(iteration, self._embedding.rows(tokens))
        self._events += planner.take_events()
        if self._events:
            self._settle_later()
        self._arm_timer()

    def _on_result(self, result: IterationResult) -> None:
        assert self._planner is not None
        now = self._now()
        try:
            events = self._planner.complete(self._known_tokens(result), now, learn=False)
        except LongspanError as error:
            self._on_failure(RingError(str(error)))
            return
        self._events += events
        if self._planner.last_completed is not None:
            ledger = None if self._speculation is None else self._speculation.ledger
            self._journal.note(self._planner.last_completed, result, now, ledger)
        # Plan first: the stages start on the next iteration while texts are made of this one.
        self._pump()

    def _known_tokens(self, result: IterationResult) -> IterationResult:
        """The result, with every span failed that was answered by a token that the model does not have."""
        limit = self._vocabulary
        wrong = {sample.span: sample.token for sample in result.samples if not 0 <= sample.token < limit}
        if not wrong:
            return result
        failures = tuple(
            SpanFailure(span, f"the last stage answered with token {token}, the model has tokens 0 to {limit - 1}")
            for span, token in wrong.items()
        )
        return msgspec.structs.replace(result, failures=result.failures + failures)

    def _settle_later(self) -> None:
        """What no stage waits for, a moment after the next iteration was sent.

        A stage in this process first needs the interpreter itself; while it computes, it does not.
        """
        if self._settling is not None:
            return
        if self._works_here and self._driver is not None and self._driver.pending:
            self._settling = asyncio.get_running_loop().call_later(SETTLE_SECONDS, self._settle)
        else:
            self._settle()

    def _settle(self) -> None:
        """Hand over texts, learn from timings, write the trace."""
        assert self._planner is not None
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        now = self._now()
        events, self._events = self._events, []
        self._answers.dispatch(events, now)
        self._planner.learn()
        self._journal.write()

    def _arm_timer(self) -> None:
        """Wake up when the next waiting request times out."""
        assert self._planner is not None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._planner.next_deadline()
        if due is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due - self._now()), self._expire)

    def _expire(self) -> None:
        assert self._planner is not None
        self._events += self._planner.expire(self._now())
        self._pump()

    @staticmethod
    def _now() -> float:
        return time.perf_counter()


def _sequence_request(request: GenerationRequest, end_tokens: frozenset[int], now: float) -> SequenceRequest:
    sampling = msgspec.structs.replace(
        request.sampling,
        seed=request.seed or 0,
        prompt_length=len(request.prompt),
        suppress=tuple(sorted(end_tokens)) if request.sampling.min_tokens else request.sampling.suppress,
    )
    return SequenceRequest(
        prompt=request.prompt,
        max_tokens=request.max_tokens,
        end_tokens=end_tokens,
        sampling=sampling,
        priority=request.priority,
        deadline=None if request.deadline is None else now + request.deadline,
        cache_salt=request.cache_salt,
    )
