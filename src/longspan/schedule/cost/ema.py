"""Seconds a row, smoothed: the simplest model in use."""

from __future__ import annotations

from longspan.schedule.cost.base import CostModel
from longspan.schedule.geometry import Geometry

SMOOTHING = 0.25
MINIMUM_ROWS = 64


class EmaCost(CostModel):
    """One rate for everything: 3/4 of the old rate and 1/4 of the new one.

    Small iterations would drown the rate in fixed cost, so they teach only until the first one of `minimum_rows`
    rows.
    """

    name = "ema"

    def __init__(self, minimum_rows: int = MINIMUM_ROWS) -> None:
        super().__init__()
        self._minimum_rows = minimum_rows
        self._rate = 0.0
        self._from_large = False

    def predict(self, geometry: Geometry) -> float:
        return self._rate * geometry.rows

    def _learn(self, geometry: Geometry, seconds: float) -> None:
        large = geometry.rows >= self._minimum_rows
        if self._from_large and not large:
            return
        rate = seconds / geometry.rows
        if self._rate == 0.0 or large > self._from_large:
            self._rate = rate
        else:
            self._rate += SMOOTHING * (rate - self._rate)
        self._from_large = large
