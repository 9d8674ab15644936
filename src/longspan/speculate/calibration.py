"""How predictions compare with what came of them."""

from __future__ import annotations

_PRESUMED = 32.0
_MEMORY = 400.0


class Calibration:
    """factor: tokens that came over tokens that were predicted; 1 before anything is known.

    The prediction counts as right for so many tokens as `_PRESUMED`, and the past fades within `_MEMORY` of them.
    """

    def __init__(self) -> None:
        self._came = self._predicted = 0.0

    @property
    def factor(self) -> float:
        return (self._came + _PRESUMED) / (self._predicted + _PRESUMED)

    def observe(self, came: float, predicted: float) -> None:
        """So many tokens came while so many were predicted."""
        kept = max(0.0, 1 - predicted / _MEMORY)
        self._came = kept * self._came + came
        self._predicted = kept * self._predicted + predicted
