"""The contract of a cost model."""

from __future__ import annotations

import abc

from longspan.schedule.geometry import Geometry

SHORTEST, LONGEST = 1e-9, 1e6
"""Seconds that an iteration may plausibly take; anything else, or no number, teaches nothing."""


class CostModel(abc.ABC):
    """Predicts one stage's seconds for one iteration, and learns from what it really took.

    A prediction only rests on observations that were made before it. Nothing here raises: geometry without rows and
    times outside of SHORTEST and LONGEST are ignored.
    """

    name: str

    def __init__(self) -> None:
        self.observations = 0

    @property
    def trained(self) -> bool:
        """True once there is anything to predict from; before, `predict` returns 0."""
        return self.observations > 0

    @abc.abstractmethod
    def predict(self, geometry: Geometry) -> float:
        """Seconds, finite and not negative."""

    def observe(self, geometry: Geometry, seconds: float) -> None:
        """Learn from one iteration."""
        if geometry.rows > 0 and geometry.sequences > 0 and SHORTEST <= seconds <= LONGEST:
            self.observations += 1
            self._learn(geometry, seconds)

    @abc.abstractmethod
    def _learn(self, geometry: Geometry, seconds: float) -> None:
        """Take over one valid observation."""
