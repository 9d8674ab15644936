"""A closed form whose weights are learned as it runs.

    seconds = c + d + s (passes - 1) + b x + h y + g L + a (2 L x + x^2),  sums over the sequences of the iteration

c: fixed cost of an iteration (launch, weights). d: the same, in addition when decode rows run. s: each further pass
over the layers. b: a row. h: a sampled row, which passes the output matrix. g: a position of KV read. a: an
attention pair. The last two follow from counting the operations of attention with x new rows behind a history of L.
All weights are costs and therefore never negative.
"""

from __future__ import annotations

from longspan.schedule.cost.base import CostModel
from longspan.schedule.geometry import Geometry

FORGETTING = 0.995
"""Weight of an observation after each further one; the memory is about 200 iterations long."""

SWEEPS = 2
_FEATURES = 7
RIDGE = 1e-6


class AnalyticCost(CostModel):
    """Recursive least squares with forgetting and non-negative weights.

    Observations are weighted by 1 / seconds^2, so that the relative error is what is made small. The normal
    equations are updated at each observation and improved by two sweeps of non-negative coordinate descent, which
    starts from the weights before.
    """

    name = "analytic"

    def __init__(self, forgetting: float = FORGETTING) -> None:
        super().__init__()
        self._forgetting = forgetting
        self._normal = [[0.0] * _FEATURES for _ in range(_FEATURES)]
        self._target = [0.0] * _FEATURES
        self._weights = [0.0] * _FEATURES

    @property
    def weights(self) -> dict[str, float]:
        """Seconds by the letters above; g for 1000 positions, a for 1e6 pairs."""
        return dict(zip("cdsbhga", self._weights, strict=True))

    def predict(self, geometry: Geometry) -> float:
        c, d, s, b, h, g, a = self._weights
        seconds = (
            c
            + s * (geometry.sub_batches - 1)
            + b * (geometry.exact_rows + geometry.prefill_rows)
            + h * geometry.sampled_rows
            + g * geometry.kv_read * 1e-3
            + a * (2 * geometry.history_rows + geometry.square_rows) * 1e-6
        )
        return seconds + d if geometry.exact_rows else seconds

    def _learn(self, geometry: Geometry, seconds: float) -> None:
        features = (
            1.0 / seconds,
            1.0 / seconds if geometry.exact_rows else 0.0,
            (geometry.sub_batches - 1) / seconds,
            geometry.rows / seconds,
            geometry.sampled_rows / seconds,
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
