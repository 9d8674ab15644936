"""Random arrivals, cancels, faults, lost rings and pressure against the serial truth."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from longspan.errors import ContextLengthError, QueueFullError
from longspan.schedule.events import Event, Failed, FailureKind, Finished, FinishReason, TokensCommitted
from longspan.schedule.limits import Limits
from longspan.schedule.planner import Planner
from longspan.schedule.policy import Policy
from longspan.schedule.request import SequenceRequest
from longspan.schedule.span import IterationResult, Sample, SpanFailure, StageTiming
from tests.schedule.border_oracle import BorderOracle, border_answer
from tests.schedule.invariants import check_iteration, check_planner

END_TOKENS = frozenset(range(0, 32000, 17))
PREFIXES = [tuple(random.Random(seed).randrange(32000) for _ in range(120)) for seed in range(3)]

limits_strategy = st.builds(
    lambda slots, exact, chunk, pool, running, prefills, rows: Limits(
        slots=slots,
        cells_per_slot=160,
        exact_rows=exact,
        max_rows=rows,
        token_budget=rows,
        cells_total=max(161, int(pool * slots * 160)),
        chunk=min(chunk, rows),
        max_running=running,
        max_waiting=12,
        max_prefill_sequences=prefills,
    ),
    slots=st.integers(1, 5),
    exact=st.sampled_from([5, 16, 64]),
    chunk=st.sampled_from([3, 16, 40]),
    pool=st.sampled_from([0.4, 0.7, 1.0]),
    running=st.integers(1, 6),
    prefills=st.integers(1, 3),
    rows=st.sampled_from([40, 200]),
)
policy_strategy = st.builds(
    Policy,
    loss_limit=st.just(1 << 30),  # the machine loses rings at will
    mixing=st.booleans(),
    lanes=st.integers(1, 3),
    prefix_reuse=st.booleans(),
    debt_share=st.sampled_from([0.0, 0.5]),
    joined_floor=st.sampled_from([0.0, 0.008]),
    whole_rows=st.sampled_from([0, 50]),
    guard_breaches=st.just(1),
    queue_timeout=st.sampled_from([None, 5.0]),
)


class PlannerMachine(RuleBasedStateMachine):
    """The planner and a ring that answers in order, with up to three iterations in flight."""

    @initialize(limits=limits_strategy, policy=policy_strategy, seed=st.integers(0, 1 << 30))
    def start(self, limits: Limits, policy: Policy, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.policy = policy
        self.planner = Planner(limits, policy)
        self.oracle = BorderOracle(limits)
        self.results: list[IterationResult] = []
        self.requests: dict[int, SequenceRequest] = {}
        self.answers: dict[int, list[int]] = {}
        self.reasons: dict[int, str] = {}
        self.faulted: set[int] = set()
        self.prefill_only = 0

    @rule(prefix=st.integers(0, 2), shared=st.integers(0, 120), own=st.integers(1, 60), data=st.data())
    def submit(self, prefix: int, shared: int, own: int, data: st.DataObject) -> None:
        self.ask(PREFIXES[prefix][:shared] + tuple(self.random.randrange(32000) for _ in range(own)), data)

    @precondition(lambda self: self.reasons)
    @rule(own=st.integers(0, 40), data=st.data())
    def follow_up(self, own: int, data: st.DataObject) -> None:
        """The next turn of a conversation: prompt and answer of an earlier one, and more."""
        earlier = data.draw(st.sampled_from(sorted(self.reasons)))
        prompt = self.requests[earlier].prompt + tuple(self.answers[earlier])
        self.ask(prompt + tuple(self.random.randrange(32000) for _ in range(own)), data)

    def ask(self, prompt: tuple[int, ...], data: st.DataObject) -> None:
        request = SequenceRequest(
            prompt=prompt,
            max_tokens=data.draw(st.integers(1, 30)),
            end_tokens=END_TOKENS,
            priority=data.draw(st.integers(-2, 2)),
            cache_salt=data.draw(st.sampled_from(["", "other"])),
        )
        try:
            sequence = self.planner.submit(request, self.now)
        except ContextLengthError:
            assert len(prompt) + 1 > self.planner.limits.longest
        except QueueFullError as error:
            assert error.retry_after >= 1
            assert self.planner.statistics(self.now).waiting >= self.planner.limits.max_waiting
        else:
            self.requests[sequence] = request
            self.answers[sequence] = []

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        live = sorted(self.requests.keys() - self.reasons.keys())
        if live:
            sequence = data.draw(st.sampled_from(live))
            self.planner.cancel(sequence, self.now)
            self.reasons[sequence] = "cancelled"
            check_planner(self.planner)

    @precondition(lambda self: len(self.results) < 3)
    @rule()
    def plan(self) -> None:
        roster = self.planner._roster
        ready = set(roster.ready._slots)
        decoding = len(roster.decoding)
        iteration = self.planner.plan(self.now)
        self.take(self.planner.take_events())
        check_planner(self.planner)
        if iteration is None:
            self.check_nothing_could_run()
            return
        check_iteration(iteration, self.planner.limits)
        decoded = {span.slot for span in iteration.spans if span.phase.is_exact}
        prefilled = {span.slot for span in iteration.spans if not span.phase.is_exact}
        if decoded:
            share = -(-decoding // self.policy.lanes)
            left = ready & {owner.slot for owner in roster.slots.owners if owner is not None} - decoded
            rows = min(share, self.planner.limits.free_rows)
            assert not left or len(decoded) >= rows or self.planner.limits.pooled, "decode rows come first"
            self.prefill_only = 0
        elif ready and prefilled:
            self.prefill_only += 1
            assert self.prefill_only <= self.planner.limits.max_prefill_only_in_a_row
        samples, failures = self.oracle.run(iteration)
        seconds = 0.002 * self.random.random() + 0.001 * iteration.rows
        timings = (StageTiming(0, 0.0, 0.0, seconds), StageTiming(1, 0.0, 0.0, seconds / 2))
        self.results.append(IterationResult(iteration.id, samples, failures, timings))

    @precondition(lambda self: self.results)
    @rule(fault=st.sampled_from(["", "", "", "missing", "duplicate", "row", "stray", "stage"]))
    def complete(self, fault: str) -> None:
        result = self.results.pop(0)
        iteration = self.planner._in_flight[0].iteration
        if fault and result.samples:
            index = self.random.randrange(len(result.samples))
            victim = result.samples[index]
            sequence = iteration.spans[victim.span].sequence
            samples = list(result.samples)
            failures = list(result.failures)
            if fault == "missing":
                del samples[index]
            elif fault == "duplicate":
                samples.append(Sample(victim.span, victim.row, victim.token + 1))
            elif fault == "row":
                samples[index] = Sample(victim.span, victim.row + 1, victim.token)
            elif fault == "stray":
                samples.append(Sample(len(iteration.spans) + 3, 0, 1))
            else:
                failures.append(SpanFailure(victim.span, "no memory"))
            if fault != "stray":
                self.faulted.add(sequence)
            result = IterationResult(result.iteration, tuple(samples), tuple(failures), result.timings)
        self.random.shuffle(order := list(result.samples))
        result = IterationResult(result.iteration, tuple(order), result.failures, result.timings)
        self.take(self.planner.complete(result, self.now))
        check_planner(self.planner)

    @rule(seconds=st.floats(0.0, 2.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.planner.expire(self.now))
        deadline = self.planner.next_deadline()
        assert deadline is None or deadline > self.now
        check_planner(self.planner)

    @precondition(lambda self: self.results)
    @rule()
    def lose_ring(self) -> None:
        self.results.clear()
        self.prefill_only = 0
        self.oracle = BorderOracle(self.planner.limits)
        self.take(self.planner.abandon(self.now))
        assert self.planner.in_flight == 0
        check_planner(self.planner)

    def take(self, events: list[Event]) -> None:
        for event in events:
            assert event.sequence not in self.reasons or self.reasons[event.sequence] == "cancelled"
            match event:
                case TokensCommitted(sequence=sequence, tokens=tokens):
                    self.answers[sequence] += tokens
                case Finished(sequence=sequence, reason=reason):
                    self.reasons[sequence] = reason.value
                case Failed(sequence=sequence, kind=kind):
                    self.reasons[sequence] = f"failed: {kind.value}"
                    if kind is FailureKind.TIMEOUT:
                        assert self.policy.queue_timeout is not None
                        assert not self.answers[sequence]
                    else:
                        assert sequence in self.faulted, "only the sequence of a fault fails"

    def check_nothing_could_run(self) -> None:
        roster = self.planner._roster
        assert not len(roster.ready), "a plan is never empty while a decode row could run"
        waits = bool(roster.decoding) and any(record.geometry.exact_rows for record in self.planner._in_flight)
        assert waits or not roster.prefilling, "prefill waits for nothing but decode rows on their way"
        if not self.results:
            assert not roster.sequences, "a plan is never empty while nothing is in flight and work waits"

    def teardown(self) -> None:
        if not hasattr(self, "planner"):
            return
        for _ in range(4000):
            while self.results:
                self.complete("")
            self.now += 0.01
            iteration = self.planner.plan(self.now)
            self.take(self.planner.take_events())
            if iteration is None:
                self.check_nothing_could_run()
                break
            check_iteration(iteration, self.planner.limits)
            samples, failures = self.oracle.run(iteration)
            timing = StageTiming(0, 0.0, 0.0, 0.001 * iteration.rows)
            self.results.append(IterationResult(iteration.id, samples, failures, (timing,)))
        check_planner(self.planner)
        self.check_end()

    def check_end(self) -> None:
        statistics = self.planner.statistics(self.now)
        assert (statistics.running, statistics.waiting, statistics.in_flight) == (0, 0, 0)
        slots = self.planner._roster.slots
        assert slots._used == sum(slots._cached.values()), "every cell is free or cached"
        longest = self.planner.limits.longest
        for sequence, request in self.requests.items():
            truth = border_answer(request.prompt, request.max_tokens, self.planner.limits, END_TOKENS)
            truth = truth[: longest - len(request.prompt)]
            answer = self.answers[sequence]
            reason = self.reasons[sequence]
            assert answer == truth[: len(answer)], "tokens equal the serial truth"
            if reason in (FinishReason.STOP, FinishReason.LENGTH):
                assert answer == truth
                assert (answer[-1] in END_TOKENS) == (reason == FinishReason.STOP)


TestPlannerMachine = PlannerMachine.TestCase
TestPlannerMachine.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
