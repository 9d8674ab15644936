"""Paired measurements in the order A B B A, so that a machine that drifts harms both arms alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import msgspec


class Paired(msgspec.Struct, frozen=True):
    """Figures of two arms.

    a, b: every measurement, in order. ratio: median over rounds of (mean of a) / (mean of b) within a round.
    noise: median over rounds and arms of the relative difference of the two measurements of one arm in a round.
    """

    a: tuple[float, ...]
    b: tuple[float, ...]
    ratio: float
    noise: float


def abba(a: Callable[[], float], b: Callable[[], float], rounds: int) -> Paired:
    """Measure `rounds` times A B B A. The arms are expected to be warm."""
    arm_a: list[float] = []
    arm_b: list[float] = []
    for _ in range(rounds):
        arm_a.append(a())
        arm_b.append(b())
        arm_b.append(b())
        arm_a.append(a())
    return paired(arm_a, arm_b)


def paired(arm_a: list[float], arm_b: list[float]) -> Paired:
    """The figures of measurements that were taken in the order A B B A, two an arm and round."""
    rounds = [(arm_a[i : i + 2], arm_b[i : i + 2]) for i in range(0, len(arm_a), 2)]
    ratios = [sum(a) / sum(b) for a, b in rounds]
    spreads = [2 * abs(pair[0] - pair[1]) / (pair[0] + pair[1]) for round_ in rounds for pair in round_]
    return Paired(tuple(arm_a), tuple(arm_b), statistics.median(ratios), statistics.median(spreads))


def paired_differences(arm_a: Sequence[float], arm_b: Sequence[float]) -> list[float]:
    """Mean of a less mean of b, for each round of A B B A: two measurements an arm."""
    rounds = range(0, len(arm_a), 2)
    return [sum(arm_a[first : first + 2]) / 2 - sum(arm_b[first : first + 2]) / 2 for first in rounds]
