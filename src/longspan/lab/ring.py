"""A ring of stages with known costs and link delays, in virtual time."""

from __future__ import annotations

from typing import Protocol

from longspan.lab.costs import StageCost
from longspan.lab.oracle import Oracle
from longspan.schedule.geometry import geometry_of
from longspan.schedule.span import Iteration, IterationResult, Sample, SpanFailure, StageTiming


class Model(Protocol):
    """What stands for the model."""

    def run(self, iteration: Iteration) -> tuple[tuple[Sample, ...], tuple[SpanFailure, ...]]:
        """Samples of the asked rows, and failures."""
        ...


class ModelledRing:
    """Stages run iterations strictly in order; each starts the next one when it is free and the frame is there.

    costs: seconds of each stage. link_delay: seconds between two stages and from the last one back. The coordinator
    holds stage 0, so nothing delays the frame to it. model: gives the tokens; None: an `Oracle`.
    """

    def __init__(
        self, costs: tuple[StageCost, ...], link_delay: float, slots: int, model: Model | None = None
    ) -> None:
        self._costs = costs
        self._link_delay = link_delay
        self._free = [0.0] * len(costs)
        self._model = model or Oracle(slots)
        self.busy = [0.0] * len(costs)

    @property
    def takes_work_at(self) -> float:
        """When stage 0 is free."""
        return self._free[0]

    def run(self, iteration: Iteration, now: float) -> tuple[IterationResult, float]:
        """The iteration's result and the time at which it reaches the coordinator."""
        geometry = geometry_of(iteration.spans)
        timings = []
        received = now
        for stage, cost in enumerate(self._costs):
            started = max(received, self._free[stage])
            finished = started + cost(geometry)
            self._free[stage] = finished
            self.busy[stage] += finished - started
            timings.append(StageTiming(stage, received, started, finished, geometry.sub_batches))
            received = finished + self._link_delay
        back = received if len(self._costs) > 1 else timings[-1].finished
        samples, failures = self._model.run(iteration)
        return IterationResult(iteration.id, samples, failures, tuple(timings)), back
