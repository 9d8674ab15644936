"""Runs arrivals through the real planner and a modelled ring."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise

from longspan.errors import LongspanError, QueueFullError
from longspan.lab.oracle import serial_answer
from longspan.lab.ring import ModelledRing
from longspan.lab.workload import Arrival, in_order
from longspan.schedule.events import Admitted, Event, Failed, Finished, Preempted, TokensCommitted
from longspan.schedule.planner import Planner
from longspan.schedule.request import SequenceRequest
from longspan.schedule.span import IterationResult
from longspan.schedule.trace import Completion, TraceRecord, trace_record

RETRY_SECONDS = 0.01
"""A request that the full queue refuses comes again after this time, still counted from its first arrival."""


class LabError(LongspanError):
    """The planner broke a rule: an empty plan while work exists, or tokens that differ from the serial run."""


class Journey:
    """What happened to one arrival. Times are virtual seconds."""

    def __init__(self, arrival: Arrival) -> None:
        self.arrival = arrival
        self.admitted_at: float | None = None
        self.cached_tokens = 0
        self.token_times: list[float] = []
        self.tokens: list[int] = []
        self.finished_at: float | None = None
        self.preemptions = 0

    @property
    def first_token(self) -> float:
        """Seconds from arrival to the first token."""
        return self.token_times[0] - self.arrival.at

    @property
    def gaps(self) -> list[float]:
        """Seconds between successive tokens."""
        times = self.token_times
        return [later - earlier for earlier, later in pairwise(times)]


class Simulation:
    """One run. The clock jumps from event to event: an arrival, a result, stage 0 becoming free.

    alone: what an arrival gives on its own, by the model of the ring.
    """

    def __init__(
        self,
        planner: Planner,
        ring: ModelledRing,
        arrivals: Sequence[Arrival],
        alone: Callable[[Arrival], Sequence[int]] = lambda arrival: serial_answer(arrival.prompt, arrival.answer),
    ) -> None:
        self.planner = planner
        self.ring = ring
        self.journeys: list[Journey] = []
        self.records: list[TraceRecord] = []
        self.now = 0.0
        self._arrivals = deque((arrival.at, Journey(arrival)) for arrival in in_order(arrivals))
        self._by_sequence: dict[int, Journey] = {}
        self._alone = alone
        self._results: deque[tuple[float, IterationResult]] = deque()

    def run(self) -> None:
        """Until every arrival is answered. Raises LabError when the planner breaks a rule."""
        while self._arrivals or self._results or self._by_sequence:
            self._arrive()
            self._complete()
            if self.ring.takes_work_at <= self.now:
                self._plan()
            self._advance()
        self._check_tokens()

    def _arrive(self) -> None:
        refused = []
        while self._arrivals and self._arrivals[0][0] <= self.now:
            _, journey = self._arrivals.popleft()
            arrival = journey.arrival
            request = SequenceRequest(prompt=arrival.prompt, max_tokens=arrival.answer, priority=arrival.priority)
            try:
                self._by_sequence[self.planner.submit(request, self.now)] = journey
                self.journeys.append(journey)
            except QueueFullError:
                refused.append((self.now + RETRY_SECONDS, journey))
        if refused:
            self._arrivals = deque(sorted([*self._arrivals, *refused], key=lambda entry: entry[0]))

    def _complete(self) -> None:
        while self._results and self._results[0][0] <= self.now:
            _, result = self._results.popleft()
            self._take(self.planner.complete(result, self.now))
            if self.planner.last_completed is not None:
                self.records.append(trace_record(Completion(self.planner.last_completed, result, self.now)))

    def _plan(self) -> None:
        iteration = self.planner.plan(self.now)
        self._take(self.planner.take_events())
        if iteration is None:
            if self._by_sequence and not self._results:
                raise LabError(
                    f"at {self.now * 1e3:.3f} ms the plan is empty although {len(self._by_sequence)} requests are "
                    "not finished and nothing is in flight"
                )
            return
        result, back = self.ring.run(iteration, self.now)
        self._results.append((back, result))

    def _advance(self) -> None:
        times = [self._arrivals[0][0]] if self._arrivals else []
        times += [self._results[0][0]] if self._results else []
        if self.ring.takes_work_at > self.now:
            times.append(self.ring.takes_work_at)
        if times:
            self.now = max(self.now, min(times))

    def _take(self, events: list[Event]) -> None:
        for event in events:
            journey = self._by_sequence[event.sequence]
            match event:
                case TokensCommitted(tokens=tokens):
                    journey.tokens += tokens
                    journey.token_times += [self.now] * len(tokens)
                case Admitted(cached_tokens=cached):
                    if journey.admitted_at is None:
                        journey.admitted_at, journey.cached_tokens = self.now, cached
                case Preempted():
                    journey.preemptions += 1
                case Finished():
                    journey.finished_at = self.now
                    del self._by_sequence[event.sequence]
                case Failed(reason=reason):
                    raise LabError(f"sequence {event.sequence} failed: {reason}")

    def _check_tokens(self) -> None:
        for journey in self.journeys:
            alone = self._alone(journey.arrival)
            if journey.tokens != list(alone[: len(journey.tokens)]) or not journey.tokens:
                raise LabError(f"the request that arrived at {journey.arrival.at} s has other tokens than alone")
