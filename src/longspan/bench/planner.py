"""What a plan costs: the real planner in a steady state, without a model.

Every plan is the hard case: all running sequences have a decode row ready or prefill, prompts share prefixes, and
the queue is kept full. At every size an answer ends, and a waiting sequence takes its place, in every fourth plan
on the average, so that the figures of different sizes can be compared.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from longspan.schedule.events import Finished
from longspan.schedule.limits import Limits
from longspan.schedule.planner import Planner
from longspan.schedule.policy import Policy
from longspan.schedule.request import SequenceRequest
from longspan.schedule.span import Iteration, IterationResult, Sample, StageTiming

SIZES = ((64, 256), (128, 1024), (256, 2048), (512, 4096))
"""(running, waiting) of the rows that are measured."""

STAGES = 2
WARM_UP = 50
ROUNDS = 8

_PREFIXES = 64
_PROMPT_TOKENS = (32, 256)
_SHARED_TOKENS = 48


class PlannerCost(msgspec.Struct, frozen=True):
    """Microseconds of one call with so many running and waiting sequences.

    plan: of `plan`; complete: of `complete`; p50, p99 and mean. decode_rows: median decode rows of a plan.
    """

    running: int
    waiting: int
    plan_us_p50: float
    plan_us_p99: float
    plan_us_mean: float
    complete_us_p50: float
    complete_us_p99: float
    decode_rows: int
    plans: int


def measure_planner(running: int, waiting: int, *, plans: int = 400, seed: int = 1) -> PlannerCost:
    """Figures of one size: `running` slots and a queue of `waiting`."""
    return measure_planners(((running, waiting),), plans=plans, seed=seed)[0]


def measure_planners(
    sizes: Sequence[tuple[int, int]] = SIZES, *, plans: int = 400, seed: int = 1
) -> list[PlannerCost]:
    """Drive a planner of each (running, waiting), and time its calls.

    The sizes take turns, round after round, so that a machine that changes its speed does so for all of them. The
    garbage collector is off inside the rounds, as it would be charged to whoever runs next.
    """
    loads = [_Load(running, waiting, seed) for running, waiting in sizes]
    steps: list[list[_Step]] = [[] for _ in loads]
    for load in loads:
        for _ in range(WARM_UP):
            load.step()
    for _ in range(ROUNDS):
        gc.collect()
        gc.disable()
        try:
            for load, taken in zip(loads, steps, strict=True):
                load.step()  # brings the load back into the caches
                taken += [load.step() for _ in range(max(1, plans // ROUNDS))]
        finally:
            gc.enable()
    return [_cost(running, waiting, taken) for (running, waiting), taken in zip(sizes, steps, strict=True)]


class _Step(NamedTuple):
    """Microseconds of a plan and of taking its result, and the plan's decode rows."""

    plan: float
    complete: float
    decode_rows: int


def _cost(running: int, waiting: int, steps: list[_Step]) -> PlannerCost:
    plan_times = sorted(step.plan for step in steps)
    complete_times = sorted(step.complete for step in steps)
    return PlannerCost(
        running=running,
        waiting=waiting,
        plan_us_p50=_quantile(plan_times, 0.5),
        plan_us_p99=_quantile(plan_times, 0.99),
        plan_us_mean=round(sum(plan_times) / len(plan_times), 1),
        complete_us_p50=_quantile(complete_times, 0.5),
        complete_us_p99=_quantile(complete_times, 0.99),
        decode_rows=sorted(step.decode_rows for step in steps)[len(steps) // 2],
        plans=len(steps),
    )


class _Load:
    """A planner that is kept full."""

    def __init__(self, running: int, waiting: int, seed: int) -> None:
        self._random = random.Random(seed)
        # With answers of four times as many tokens as there are sequences, one ends in every fourth plan.
        self._answer_tokens = (2 * running, 6 * running)
        self._now = 0.0
        self._prefixes = [tuple(self._tokens(_SHARED_TOKENS)) for _ in range(_PREFIXES)]
        limits = Limits(
            slots=running,
            cells_per_slot=6 * running + 512,
            exact_rows=1 << 20,
            max_rows=1 << 20,
            token_budget=2 * running + 1024,
            max_running=running,
            max_waiting=waiting + running,
        )
        self._planner = Planner(limits, Policy(queue_timeout=1e9))
        for _ in range(running + waiting):
            self._submit()
        while self._planner.statistics(self._now).running < running:
            self.step()

    def step(self) -> _Step:
        """One iteration."""
        planner = self._planner
        self._now += 0.01
        start = time.perf_counter_ns()
        iteration = planner.plan(self._now)
        planned = time.perf_counter_ns() - start
        if iteration is None:
            raise AssertionError("the planner has work and planned nothing")
        result = self._result(iteration)
        start = time.perf_counter_ns()
        events = planner.complete(result, self._now)
        completed = time.perf_counter_ns() - start
        for event in events:
            if isinstance(event, Finished):
                self._submit()
        decode_rows = sum(1 for span in iteration.spans if span.phase.is_exact)
        return _Step(planned / 1e3, completed / 1e3, decode_rows)

    def _result(self, iteration: Iteration) -> IterationResult:
        samples = tuple(
            Sample(index, row, self._random.randrange(1000))
            for index, span in enumerate(iteration.spans)
            for row in span.sample_rows
        )
        seconds = 0.005 + 1e-4 * iteration.rows
        timings = tuple(StageTiming(stage, 0.0, 0.0, seconds) for stage in range(STAGES))
        return IterationResult(iteration.id, samples, (), timings)

    def _submit(self) -> None:
        prompt = self._random.choice(self._prefixes) + tuple(self._tokens(self._random.randint(*_PROMPT_TOKENS)))
        request = SequenceRequest(prompt=prompt, max_tokens=self._random.randint(*self._answer_tokens))
        self._planner.submit(request, self._now)

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(1000) for _ in range(count)]


def _quantile(ordered: list[float], share: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)
