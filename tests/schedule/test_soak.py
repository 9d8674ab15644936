"""A long life: random arrivals, cancels, priorities, pressure and lost rings, without leak or starvation."""

from __future__ import annotations

import os
import random
import sys
import time
from collections import deque

import pytest

from longspan.errors import QueueFullError
from longspan.lab.oracle import Oracle, serial_answer
from longspan.schedule.events import Event, Failed, Finished, TokensCommitted
from longspan.schedule.limits import Limits
from longspan.schedule.planner import Planner
from longspan.schedule.policy import Policy
from longspan.schedule.request import SequenceRequest
from longspan.schedule.span import IterationResult, StageTiming
from tests.schedule.invariants import check_iteration, check_planner

LIMITS = Limits(slots=6, cells_per_slot=600, cells_total=900, exact_rows=64, max_rows=512, chunk=63, max_waiting=40)
POLICY = Policy(loss_limit=1 << 30, lanes=2, aging_seconds=2.0)
ROW_SECONDS, FIXED_SECONDS = 0.0005, 0.002
LONGEST_PROMPT, LONGEST_ANSWER = 500, 80
PRIORITIES = (-1, 0, 0, 0, 1)
BOUND_SECONDS = 60.0
"""Longest virtual wait that is allowed: aging over three priorities, a full queue of work, and twice as much."""


class Life:
    """A planner and a ring, two iterations in flight, in virtual time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.planner = Planner(LIMITS, POLICY)
        self.oracle = Oracle(LIMITS.slots)
        self.now = 0.0
        self.results: deque[IterationResult] = deque()
        self.live: dict[int, SequenceRequest] = {}
        self.answers: dict[int, list[int]] = {}
        self.documents = [self.tokens(400) for _ in range(4)]
        self.finished = self.refused = self.cancelled = self.lost = 0

    def tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self.random.choices(range(32000), k=count))

    def arrive(self) -> None:
        own = self.tokens(self.random.randint(1, 100))
        prompt = self.random.choice(self.documents)[: self.random.choice([0, 0, self.random.randrange(400)])] + own
        request = SequenceRequest(
            prompt=prompt,
            max_tokens=self.random.randint(1, LONGEST_ANSWER),
            priority=self.random.choice(PRIORITIES),
        )
        try:
            sequence = self.planner.submit(request, self.now)
        except QueueFullError:
            self.refused += 1
        else:
            self.live[sequence] = request
            self.answers[sequence] = []

    def step(self, arrivals: bool) -> None:
        draw = self.random.random
        if arrivals and draw() < 0.05:
            for _ in range(self.random.choice([1, 1, 1, 12])):
                self.arrive()
        if self.live and draw() < 0.02:
            sequence = self.random.choice(list(self.live))
            self.planner.cancel(sequence, self.now)
            del self.live[sequence], self.answers[sequence]
            self.cancelled += 1
        if draw() < 0.001:
            self.results.clear()
            self.oracle = Oracle(LIMITS.slots)
            self.take(self.planner.abandon(self.now))
            self.lost += 1
        while len(self.results) < 2:
            iteration = self.planner.plan(self.now)
            self.take(self.planner.take_events())
            if iteration is None:
                assert self.results or not self.live
                break
            check_iteration(iteration, LIMITS)
            samples, failures = self.oracle.run(iteration)
            seconds = FIXED_SECONDS + ROW_SECONDS * iteration.rows * (0.8 + 0.4 * draw())
            timings = (StageTiming(0, 0.0, 0.0, seconds),)
            self.results.append(IterationResult(iteration.id, samples, failures, timings))
        if self.results:
            result = self.results.popleft()
            self.now += result.timings[0].finished
            self.take(self.planner.complete(result, self.now))
        check_planner(self.planner)

    def take(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case TokensCommitted(sequence=sequence, tokens=tokens):
                    self.answers[sequence] += tokens
                case Finished(sequence=sequence):
                    request = self.live.pop(sequence)
                    answer = self.answers.pop(sequence)
                    assert answer == serial_answer(request.prompt, request.max_tokens)
                    self.finished += 1
                case Failed(reason=reason):
                    raise AssertionError(reason)

    def end(self) -> str:
        """Let everything finish; a line about the life."""
        while self.live:
            self.step(arrivals=False)
        statistics = self.planner.statistics(self.now)
        assert (statistics.running, statistics.waiting, statistics.in_flight) == (0, 0, 0)
        slots = self.planner._roster.slots
        assert slots._used == sum(slots._cached.values())
        assert statistics.longest_wait < BOUND_SECONDS
        return (
            f"{self.now:.0f} virtual seconds, {statistics.iterations} iterations, {self.finished} answers, "
            f"{self.refused} refused, {self.cancelled} cancelled, {statistics.preemptions} preemptions, "
            f"{self.lost} lost rings; longest wait {statistics.longest_wait:.2f} s, most overtakes "
            f"{statistics.most_overtakes}"
        )


def live(seconds: float, seed: int) -> str:
    """A life of so many real seconds."""
    life = Life(seed)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(50):
            life.step(arrivals=True)
    return life.end()


def test_a_short_life() -> None:
    assert " 0 answers" not in live(4.0, seed=1)


@pytest.mark.soak
def test_a_long_life(capsys: pytest.CaptureFixture[str]) -> None:
    """LONGSPAN_SOAK_SECONDS says how long; ten minutes unless told otherwise."""
    seconds = float(os.environ.get("LONGSPAN_SOAK_SECONDS", "600"))
    for seed in range(4):
        report = live(seconds / 4, seed)
        with capsys.disabled():
            sys.stdout.write(f"soak {seed}: {report}\n")
