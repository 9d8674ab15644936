"""Drives a planner against an oracle, one iteration at a time."""

from __future__ import annotations

from collections.abc import Callable

from longspan.schedule.events import Admitted, Event, Failed, Finished, Preempted, TokensCommitted
from longspan.schedule.limits import Limits
from longspan.schedule.planner import Planner
from longspan.schedule.policy import Policy
from longspan.schedule.request import SequenceRequest
from longspan.schedule.span import Iteration, IterationResult, StageTiming
from tests.schedule.border_oracle import BorderOracle
from tests.schedule.invariants import check_iteration, check_planner


def limits_with(
    *, slots: int = 4, cells: int = 512, exact_rows: int = 64, chunk: int = 63, pool: int | None = None
) -> Limits:
    """Limits of a small ring."""
    return Limits(
        slots=slots, cells_per_slot=cells, cells_total=pool, exact_rows=exact_rows, max_rows=512, chunk=chunk
    )


class Driver:
    """A planner, an oracle and a clock. Every iteration is complete before the next one, unless told otherwise."""

    def __init__(self, limits: Limits | None = None, policy: Policy | None = None) -> None:
        self.limits = limits or limits_with()
        self.planner = Planner(self.limits, policy)
        self.oracle = BorderOracle(self.limits)
        self.now = 0.0
        self.seconds: Callable[[Iteration], float] = lambda iteration: 0.001 * iteration.rows
        self.iterations: list[Iteration] = []
        self.answers: dict[int, list[int]] = {}
        self.cached: dict[int, int] = {}
        self.ends: dict[int, str] = {}
        self.preempted: list[int] = []

    def submit(
        self,
        prompt: tuple[int, ...],
        answer: int = 8,
        *,
        priority: int = 0,
        salt: str = "",
        deadline: float | None = None,
    ) -> int:
        request = SequenceRequest(
            prompt=prompt, max_tokens=answer, priority=priority, cache_salt=salt, deadline=deadline
        )
        sequence = self.planner.submit(request, self.now)
        self.answers[sequence] = []
        return sequence

    def plan(self) -> tuple[Iteration, IterationResult] | None:
        """Plan and run, but do not complete."""
        iteration = self.planner.plan(self.now)
        self.take(self.planner.take_events())
        if iteration is None:
            return None
        check_iteration(iteration, self.limits)
        self.iterations.append(iteration)
        samples, failures = self.oracle.run(iteration)
        timing = StageTiming(0, 0.0, 0.0, self.seconds(iteration))
        return iteration, IterationResult(iteration.id, samples, failures, (timing,))

    def complete(self, result: IterationResult) -> None:
        self.now += result.timings[0].finished if result.timings else 0.001
        self.take(self.planner.complete(result, self.now))
        check_planner(self.planner)

    def step(self) -> Iteration | None:
        """One iteration, from plan to result."""
        planned = self.plan()
        if planned is None:
            return None
        self.complete(planned[1])
        return planned[0]

    def run(self) -> None:
        """Until nothing is left."""
        while self.step() is not None:
            pass

    def run_until(self, done: Callable[[], bool]) -> None:
        for _ in range(10_000):
            if done():
                return
            assert self.step() is not None, "nothing left to run"
        raise AssertionError("it never came to that")

    def take(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case TokensCommitted(sequence=sequence, tokens=tokens):
                    self.answers[sequence] += tokens
                case Admitted(sequence=sequence, cached_tokens=cached):
                    self.cached.setdefault(sequence, cached)
                case Preempted(sequence=sequence):
                    self.preempted.append(sequence)
                case Finished(sequence=sequence, reason=reason):
                    self.ends[sequence] = reason.value
                case Failed(sequence=sequence, kind=kind):
                    self.ends[sequence] = kind.value
