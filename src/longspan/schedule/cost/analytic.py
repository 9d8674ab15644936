"""A closed form whose weights are learned as it runs.

    seconds = speed * bias * (c + d + s (passes - 1) + b x + h y + g r + a (2 L x + x^2)),  over all sequences

c: fixed cost of an iteration (launch, weights). d: the same, in addition when decode rows run. s: each further pass
over the layers. b: a row. h: a sampled row, which passes the output matrix. g: a position of KV read. a: an
attention pair. The last follows from counting the operations of attention with x new rows behind a history of L.
All weights are costs and therefore never negative. `speed` follows the machine of the moment: clocks and neighbours
change within seconds, what a row costs in relation to another does not. `bias` is what the form misses about one of
the three execution paths: decode rows alone, prefill alone, both.
"""

from __future__ import annotations

from longspan.schedule.cost.base import CostModel
from longspan.schedule.geometry import Geometry

FORGETTING = 0.995
"""Weight of an observation after each further one; the memory of the weights is about 200 iterations long."""

SPEED_SMOOTHING = 0.2
BIAS_SMOOTHING = 0.2
"""How fast `speed` and `bias` follow, in the exponent. From 0.1 to 0.3 the error on traces changes by a tenth."""

SWEEPS = 2
LARGEST_RATIO = 4.0
"""An observation counts at most as so many times slower or faster than predicted."""

_RIDGE = 1e-6
_FEATURES = 7
_ORDER = (3, 6, 4, 5, 2, 0, 1)
"""Rows and pairs explain first: while all iterations look alike, their time is not taken for fixed cost."""


class AnalyticCost(CostModel):
    """Recursive least squares with forgetting and non-negative weights, times quickly smoothed factors.

    Observations are weighted by 1 / predicted^2, so that the relative error is what is made small, without the bias
    to small times that weighting by the measured time has. The normal equations are updated at each observation and
    improved by two sweeps of non-negative coordinate descent, which starts from the weights before.
    """

    name = "analytic"

    def __init__(self, forgetting: float = FORGETTING) -> None:
        super().__init__()
        self._forgetting = forgetting
        self._normal = [[0.0] * _FEATURES for _ in range(_FEATURES)]
        self._target = [0.0] * _FEATURES
        self._weights = [0.0] * _FEATURES
        self._speed = 1.0
        self._bias = [1.0, 1.0, 1.0]

    @property
    def weights(self) -> dict[str, float]:
        """Seconds by the letters above, at the present speed; g for 1000 positions, a for 1e6 pairs."""
        return {name: self._speed * weight for name, weight in zip("cdsbhga", self._weights, strict=True)}

    def predict(self, geometry: Geometry) -> float:
        c, d, s, b, h, g, a = self._weights
        exact = geometry.exact_rows
        return (
            self._speed
            * self._bias[_path(geometry)]
            * (
                (c + d if exact else c)
                + s * (geometry.sub_batches - 1)
                + b * (exact + geometry.prefill_rows)
                + h * geometry.sampled_rows
                + g * geometry.kv_read * 1e-3
                + a * (2 * geometry.history_rows + geometry.square_rows) * 1e-6
            )
        )

    def _learn(self, geometry: Geometry, seconds: float) -> None:
        expected = self.predict(geometry)
        unit = seconds
        if expected > 0:
            path = _path(geometry)
            expected /= self._speed * self._bias[path]
            ratio = seconds / (expected * self._speed * self._bias[path])
            ratio = min(LARGEST_RATIO, max(1.0 / LARGEST_RATIO, ratio))
            self._speed *= ratio**SPEED_SMOOTHING
            self._bias[path] *= ratio**BIAS_SMOOTHING
            seconds /= self._speed
            unit = min(LARGEST_RATIO * seconds, max(seconds / LARGEST_RATIO, expected))
        features = (
            1.0 / unit,
            1.0 / unit if geometry.exact_rows else 0.0,
            max(0, geometry.sub_batches - 1) / unit,
            geometry.rows / unit,
            geometry.sampled_rows / unit,
            geometry.kv_read * 1e-3 / unit,
            geometry.pairs * 1e-6 / unit,
        )
        share = seconds / unit
        keep = self._forgetting
        for row, left in zip(self._normal, features, strict=True):
            for index, right in enumerate(features):
                row[index] = keep * row[index] + left * right
        self._target = [keep * old + share * new for old, new in zip(self._target, features, strict=True)]
        self._descend()

    def _descend(self) -> None:
        weights = self._weights
        for _ in range(SWEEPS):
            for index in _ORDER:
                row = self._normal[index]
                own = row[index]
                if own <= 0.0:
                    continue
                rest = self._target[index] - sum(map(float.__mul__, row, weights)) + own * weights[index]
                weights[index] = max(0.0, rest / (own * (1.0 + _RIDGE)))


def _path(geometry: Geometry) -> int:
    """0: decode rows alone, 1: both, 2: prefill alone."""
    if not geometry.prefill_rows:
        return 0
    return 1 if geometry.exact_rows else 2
