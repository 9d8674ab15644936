"""What iterations of decode and verify rows take on the slowest stage: learned from the windows themselves."""

from __future__ import annotations

PRESUMED_ROW = 0.1
"""A further row's seconds over those of the first, as long as nothing else is known. Low on purpose: who takes rows
for dear never sends any, and never learns that they are cheap."""
PRESUMED_TRUST = 24.0
"""Weight of that presumption, in squared further rows: six windows of three rows outweigh it twice."""

FORGETTING = 0.998
"""Weight of an observation after each further one."""
SPEED_SMOOTHING = 0.1
"""How fast `speed` follows, in the exponent: machines get slower and faster within seconds."""
LARGEST_RATIO = 3.0
"""An observation counts at most as so many times slower or faster than predicted."""
SWEEPS = 3


class WindowCost:
    """seconds = speed * (first * passes + row * (rows - passes)), without the head's drafts, which the stage tells

    A pass over the layers joins as many rows of each sequence as the shortest window has left (see
    `schedule.passes`), so one longer window among others costs nearly as much as all of them.

    Weighted least squares with forgetting, weights that are never negative, and a presumption about what a row
    costs. A planner's cost model cannot serve here: while all iterations have one row it explains their time by
    the row and not by the iteration, as is right for prefill, and so predicts that wide windows never pay.
    """

    def __init__(self) -> None:
        self._speed = 0.0
        self._weights = [1.0, PRESUMED_ROW]
        self._normal = [[0.0] * 2 for _ in range(2)]
        self._target = [0.0] * 2

    def __call__(self, rows: int, history: float) -> float:
        """Seconds of an iteration of one pass; 0 before anything was observed.

        history: not looked at, for what it costs is in all that was observed lately.
        """
        first, row = self._weights
        return self._speed * (first + row * max(0, rows - 1))

    def observe(self, rows: int, passes: int, seconds: float) -> None:
        """An iteration of decode and verify rows took so long."""
        if not 1 <= passes <= rows or seconds <= 0:
            return
        first, row = self._weights
        shape = first * passes + row * (rows - passes)
        if not self._speed:
            self._speed = seconds / shape
        ratio = min(LARGEST_RATIO, max(1 / LARGEST_RATIO, seconds / (self._speed * shape)))
        self._speed *= ratio**SPEED_SMOOTHING
        share = ratio ** (1 - SPEED_SMOOTHING)  # what is left of it at the new speed
        features = (passes / shape, (rows - passes) / shape)
        for line, left in zip(self._normal, features, strict=True):
            for index, right in enumerate(features):
                line[index] = FORGETTING * line[index] + left * right
        self._target = [FORGETTING * old + share * new for old, new in zip(self._target, features, strict=True)]
        self._descend()

    def _descend(self) -> None:
        weights = self._weights
        for _ in range(SWEEPS):
            for index, trust in enumerate((0.0, PRESUMED_TRUST)):
                line = self._normal[index]
                if not line[index]:
                    continue
                presumed = PRESUMED_ROW * weights[0] if index == 1 else 0.0
                others = sum(a * b for a, b in zip(line, weights, strict=True)) - line[index] * weights[index]
                found = (self._target[index] - others + trust * presumed) / (line[index] + trust)
                weights[index] = max(0.0 if index else 0.05, found)
