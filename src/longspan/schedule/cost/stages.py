"""One cost model for each stage; the slowest stage governs."""

from __future__ import annotations

from collections.abc import Callable

from longspan.errors import UsageError
from longspan.schedule.cost.analytic import AnalyticCost
from longspan.schedule.cost.base import CostModel
from longspan.schedule.cost.bucketed import BucketedCost
from longspan.schedule.cost.ema import EmaCost
from longspan.schedule.geometry import Geometry
from longspan.schedule.span import StageTiming

COST_MODELS: dict[str, Callable[[], CostModel]] = {
    AnalyticCost.name: AnalyticCost,
    BucketedCost.name: BucketedCost,
    EmaCost.name: EmaCost,
}


def cost_model(name: str) -> CostModel:
    """A new cost model by name. Raises UsageError for an unknown name."""
    if name not in COST_MODELS:
        raise UsageError(f"there is no cost model {name!r}; known are {', '.join(COST_MODELS)}")
    return COST_MODELS[name]()


class StageCosts:
    """Predicts every stage of the ring; a stage gets its model with its first timing."""

    def __init__(self, name: str) -> None:
        self._name = name
        cost_model(name)
        self._models: dict[int, CostModel] = {}

    @property
    def trained(self) -> bool:
        """True once any stage has a timing."""
        return bool(self._models)

    def predict(self, geometry: Geometry) -> float:
        """Seconds that the slowest stage will take; 0 when nothing is known yet."""
        slowest = 0.0
        for model in self._models.values():
            seconds = model.predict(geometry)
            if seconds > slowest:
                slowest = seconds
        return slowest

    def by_stage(self, geometry: Geometry) -> dict[int, float]:
        """Predicted seconds of each known stage."""
        return {stage: model.predict(geometry) for stage, model in self._models.items()}

    def observe(self, geometry: Geometry, timings: tuple[StageTiming, ...]) -> float:
        """Learn from an iteration; returns the seconds of its slowest stage, 0 without timings."""
        slowest = 0.0
        for timing in timings:
            if timing.stage not in self._models:
                self._models[timing.stage] = cost_model(self._name)
            seconds = timing.finished - timing.started
            self._models[timing.stage].observe(geometry, seconds)
            slowest = max(slowest, seconds)
        return slowest

    def forget(self) -> None:
        """The ring formed again: its stages may be other machines."""
        self._models.clear()
