"""Random accepts, rejects, cancels, ends and preemptions with windows in flight, against a sequential run."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from longspan.runtime.base import Capacity
from longspan.runtime.script import Script, scripted_tokens
from longspan.runtime.scripted import ScriptedRuntime
from longspan.runtime.slots import KvCopy, KvTrim
from longspan.sampling.parameters import SamplingParameters
from longspan.schedule.sequence import Sequence, Status
from longspan.speculate.ngram_suffix import NgramSuffix
from longspan.speculate.proposer import Proposer
from longspan.speculate.windows import Windows
from tests.speculate.proposers import Foreseeing
from tests.speculate.toy_planner import CELLS, ToyPlanner

SLOTS = 3
MAX_IN_FLIGHT = 6
VOCABULARY = 48
END = 7
SCRIPTS = [
    Script(vocabulary=VOCABULARY, repeat=0.9, end_token=END, end_after=11, confidence=8.0),
    Script(vocabulary=VOCABULARY, repeat=0.5, end_token=END, end_after=None, confidence=5.0),
]


class WindowsMachine(RuleBasedStateMachine):
    """Sequences come and go on three slots over two stages; what is committed must be what each gives alone."""

    windows: ClassVar[type[Windows]] = Windows
    stage: ClassVar[type[ScriptedRuntime]] = ScriptedRuntime

    def __init__(self) -> None:
        super().__init__()
        self.planner: ToyPlanner | None = None
        self.truth: dict[int, list[int]] = {}

    def _planner(self, script: Script) -> ToyPlanner:
        capacity = Capacity(SLOTS, CELLS, max_rows=512, exact_rows=512)
        stages = [self.stage(script, last=last, capacity=capacity) for last in (False, True)]
        return ToyPlanner(script, stages, slots=SLOTS, windows=self.windows)

    @rule(
        script=st.sampled_from(SCRIPTS),
        prompt=st.lists(st.integers(8, 15), min_size=1, max_size=12),
        max_tokens=st.integers(1, 24),
        chance=st.sampled_from([0.0, 0.5, 0.9, 1.0, None]),
        temperature=st.sampled_from([0.0, 0.9]),
        seed=st.integers(0, 1000),
    )
    def submit(
        self,
        script: Script,
        prompt: list[int],
        max_tokens: int,
        chance: float | None,
        temperature: float,
        seed: int,
    ) -> None:
        if self.planner is None:
            self.planner = self._planner(script)
            self.script = script
        sampling = SamplingParameters(temperature=temperature, seed=seed, frequency_penalty=0.3)
        answer = scripted_tokens(self.script, prompt, max_tokens, sampling)
        proposer: Proposer = NgramSuffix(2)
        if chance is not None:
            proposer = Foreseeing([*prompt, *answer], chance, seed=seed, vocabulary=VOCABULARY)
        sequence = self.planner.submit(prompt, max_tokens, proposer, sampling, frozenset({END}))
        if END in answer:
            answer = answer[: answer.index(END) + 1]
        self.truth[sequence.id] = answer

    @precondition(lambda self: self.planner is not None and len(self.planner.in_flight) < MAX_IN_FLIGHT)
    @rule(widths=st.lists(st.integers(0, 6), min_size=SLOTS, max_size=SLOTS))
    def plan(self, widths: list[int]) -> None:
        assert self.planner is not None
        self.planner.plan(lambda sequence: widths[sequence.slot])

    @precondition(lambda self: self.planner is not None and self.planner.in_flight)
    @rule(count=st.integers(1, 3))
    def complete(self, count: int) -> None:
        assert self.planner is not None
        for _ in range(min(count, len(self.planner.in_flight))):
            self.planner.complete()

    @precondition(lambda self: self.planner is not None and self.planner.running)
    @rule(index=st.integers(0, SLOTS - 1))
    def cancel(self, index: int) -> None:
        assert self.planner is not None
        running = self.planner.running
        self.planner.finish(running[index % len(running)])

    @precondition(lambda self: self.planner is not None and self.planner.running)
    @rule(index=st.integers(0, SLOTS - 1))
    def preempt(self, index: int) -> None:
        assert self.planner is not None
        running = self.planner.running
        self.planner.preempt(running[index % len(running)])

    @invariant()
    def committed_tokens_are_those_of_the_sequence_alone(self) -> None:
        for sequence in self._sequences():
            answer = sequence.tokens[sequence.prompt_length :]
            assert answer == self.truth[sequence.id][: len(answer)]

    @invariant()
    def figures_are_those_of_the_iterations_in_flight(self) -> None:
        if self.planner is not None:
            spans = [span for iteration, _ in self.planner.in_flight for span in iteration.spans]
            rows = sum(len(span.tokens) for span in spans if span.phase.is_exact)
            assert self.planner.ledger.rows == rows
            assert min(self.planner.ledger.live_rows, self.planner.ledger.void_rows) >= 0

    def teardown(self) -> None:
        """Everything that is left runs to its end, whatever was in flight."""
        if self.planner is None:
            return
        for _ in range(5000):
            if self.planner.plan(lambda _: 4) is None or len(self.planner.in_flight) == MAX_IN_FLIGHT:
                if not self.planner.in_flight:
                    break
                self.planner.complete()
        cancelled = {sequence.id for sequence in self._sequences() if not sequence.ended}
        for sequence in self._sequences():
            assert sequence.status is Status.FINISHED, f"sequence {sequence.id} is stuck"
            if sequence.id not in cancelled:
                assert sequence.tokens[sequence.prompt_length :] == self.truth[sequence.id]

    def _sequences(self) -> list[Sequence]:
        return [] if self.planner is None else list(self.planner.sequences.values())


class WithoutFence(Windows):
    """Replies of a cut stream are taken for replies of the new one."""

    __slots__ = ()

    def _void(self, last: int) -> None:
        self._sequence.dispatched = last


class WithoutTrim(ScriptedRuntime):
    """A stage that keeps what it has when a span starts before its end."""

    def _apply(self, action: KvTrim | KvCopy) -> None:
        if not isinstance(action, KvTrim) or action.keep == 0:
            super()._apply(action)


def machine(**parts: object) -> type[WindowsMachine]:
    return type("Machine", (WindowsMachine,), parts)


QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
RUN = settings(max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=QUIET)

TestWindowsMachine = WindowsMachine.TestCase
TestWindowsMachine.settings = RUN


@pytest.mark.parametrize(
    "parts", [{"windows": WithoutFence}, {"stage": WithoutTrim}], ids=["without-fence", "without-trim"]
)
def test_the_machine_notices_when_a_safeguard_is_missing(parts: dict[str, object]) -> None:
    run = settings(RUN, max_examples=300, phases=[Phase.generate], derandomize=True, database=None)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine(**parts), settings=run)
