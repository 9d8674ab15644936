"""A closed form whose weights are learned as it runs.

    seconds = c + s (passes - 1) + b x + g L + a (2 L x + x^2),  x, L, and pairs summed by sequence

c: fixed cost of an iteration (launch, weights). s: each further pass over the layers. b: a row. g: a position of KV
read. a: an attention pair. The last two follow from counting operations of attention with x new rows behind a
history of L; all weights are costs and therefore never negative.
"""

from __future__ import annotations

from longspan.schedule.cost.base import CostModel
from longspan.schedule.geometry import Geometry

FORGETTING = 0.995
"""Weight of an observation after each further one; the memory is about 200 iterations long."""

SWEEPS = 2
RIDGE = 1e-6


class AnalyticCost(CostModel):
    """Recursive least squares with forgetting and non-negative weights.

    Observations are weighted by 1 / seconds^2, so that the relative error is what is made small. The normal
    equations (5 x 5) are updated at each observation and improved by a few sweeps of non-negative coordinate
    descent, which starts from the weights before.
    """

    name = "analytic"

    def __init__(self, forgetting: float = FORGETTING) -> None:
        super().__init__()
        self._forgetting = forgetting
        self._normal = [[0.0] * 5 for _ in range(5)]
        self._target = [0.0] * 5
        self._weights = [0.0] * 5

    @property
    def weights(self) -> tuple[float, float, float, float, float]:
        """(c, s, b, g, a): seconds an iteration, a further pass, a row, 1000 positions, 1e6 pairs."""
        c, s, b, g, a = self._weights
        return c, s, b, g, a

    def predict(self, geometry: Geometry) -> float:
        c, s, b, g, a = self._weights
        return (
            c
            + s * (geometry.sub_batches - 1)
            + b * (geometry.exact_rows + geometry.prefill_rows)
            + g * geometry.kv_read * 1e-3
            + a * (2 * geometry.history_rows + geometry.square_rows) * 1e-6
        )

    def _learn(self, geometry: Geometry, seconds: float) -> None:
        features = (
            1.0 / seconds,
            (geometry.sub_batches - 1) / seconds,
            geometry.rows / seconds,
            geometry.kv_read * 1e-3 / seconds,
            geometry.pairs * 1e-6 / seconds,
        )
        keep = self._forgetting
        for row, left in zip(self._normal, features, strict=True):
            for index, right in enumerate(features):
                row[index] = keep * row[index] + left * right
        self._target = [keep * old + new for old, new in zip(self._target, features, strict=True)]
        self._descend()

    def _descend(self) -> None:
        weights = self._weights
        for _ in range(SWEEPS):
            for index, row in enumerate(self._normal):
                own = row[index]
                if own <= 0.0:
                    continue
                rest = self._target[index] - sum(map(float.__mul__, row, weights)) + own * weights[index]
                weights[index] = max(0.0, rest / (own * (1.0 + RIDGE)))
