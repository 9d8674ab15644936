"""A table of rates by shape, with the plain rate where the table is empty."""

from __future__ import annotations

from bisect import bisect_right

from longspan.schedule.cost.base import CostModel
from longspan.schedule.cost.ema import EmaCost
from longspan.schedule.geometry import Geometry

SMOOTHING = 0.25
MINIMUM_SAMPLES = 3
ROW_BORDERS = (16, 256)
HISTORY_BORDERS = (512, 2048, 4096)
WIDTH_BORDERS = (2, 16, 64)


class BucketedCost(CostModel):
    """3 row bands x 4 history bands x 4 widths x 2 execution paths.

    The history is weighted by each sequence's new rows. The path tells whether decode rows are present. A cell is
    used after three samples; before, the prediction is exactly that of `ema`.
    """

    name = "bucketed"

    def __init__(self, fallback: EmaCost | None = None) -> None:
        super().__init__()
        self._fallback = fallback or EmaCost()
        self._cells: dict[tuple[int, int, int, bool], tuple[float, int]] = {}

    def predict(self, geometry: Geometry) -> float:
        rate, samples = self._cells.get(_cell(geometry), (0.0, 0))
        return rate * geometry.rows if samples >= MINIMUM_SAMPLES else self._fallback.predict(geometry)

    def _learn(self, geometry: Geometry, seconds: float) -> None:
        cell = _cell(geometry)
        new = seconds / geometry.rows
        rate, samples = self._cells.get(cell, (new, 0))
        self._cells[cell] = (rate + SMOOTHING * (new - rate), samples + 1)
        self._fallback.observe(geometry, seconds)


def _cell(geometry: Geometry) -> tuple[int, int, int, bool]:
    rows = geometry.rows or 1
    return (
        bisect_right(ROW_BORDERS, rows),
        bisect_right(HISTORY_BORDERS, geometry.history_rows // rows),
        bisect_right(WIDTH_BORDERS, geometry.widest),
        geometry.exact_rows > 0,
    )
