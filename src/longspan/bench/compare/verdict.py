"""Whether a difference between two arms counts. Pure: measurements in, a verdict out.

A difference counts when it is larger than max(2 %, 2 x noise). Noise above 5 % is inconclusive, whatever the
difference. Both numbers are this project's rules of evidence; noise is what repeats of one arm differ by.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from longspan.bench.paired import paired
from longspan.errors import UsageError

LEAST_DIFFERENCE = 0.02
NOISES = 2.0
MOST_NOISE = 0.05

Better = Literal["higher", "lower"]
Word = Literal["improvement", "no difference", "regression", "inconclusive"]


class Verdict(msgspec.Struct, frozen=True):
    """One metric of B against A.

    a, b: medians over all measurements. change: ratio - 1, the ratio being the median over rounds of B over A.
    noise: median relative difference of the two measurements of an arm in a round. threshold: what a change must
    exceed to count.
    """

    metric: str
    better: Better
    a: float
    b: float
    change: float
    noise: float
    threshold: float
    verdict: Word


def judge(metric: str, better: Better, arm_a: Sequence[float], arm_b: Sequence[float]) -> Verdict:
    """The verdict on measurements taken in the order A B B A, two an arm and round.

    Raises UsageError when the arms are not whole rounds, or a measurement is not a positive number.
    """
    if len(arm_a) != len(arm_b) or not arm_a or len(arm_a) % 2:
        raise UsageError(f"{metric}: {len(arm_a)} and {len(arm_b)} measurements are not whole rounds of A B B A")
    if not all(value > 0 and math.isfinite(value) for value in (*arm_a, *arm_b)):
        raise UsageError(f"{metric}: a measurement is not a positive number, so nothing can be compared")
    found = paired(list(arm_b), list(arm_a))
    change = found.ratio - 1
    threshold = max(LEAST_DIFFERENCE, NOISES * found.noise)
    return Verdict(
        metric,
        better,
        _median(arm_a),
        _median(arm_b),
        change,
        found.noise,
        threshold,
        word(change, found.noise, better),
    )


def word(change: float, noise: float, better: Better) -> Word:
    """What a relative change is called at this noise."""
    if noise > MOST_NOISE:
        return "inconclusive"
    if abs(change) <= max(LEAST_DIFFERENCE, NOISES * noise):
        return "no difference"
    return "improvement" if (change > 0) == (better == "higher") else "regression"


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
