"""Arrivals: what is asked, and when."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from longspan.lab.oracle import VOCABULARY


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """One request. at: seconds since the start. answer: tokens to generate."""

    at: float
    prompt: tuple[int, ...]
    answer: int
    priority: int = 0


def tokens_of(seed: int, count: int) -> tuple[int, ...]:
    """`count` tokens that depend on `seed` alone; the same seed gives the same prefix at every length."""
    return tuple(random.Random(seed).choices(range(VOCABULARY), k=count))


def poisson_times(generator: random.Random, count: int, rate: float) -> list[float]:
    """Arrival times of a Poisson process with `rate` arrivals a second."""
    now = 0.0
    times = []
    for _ in range(count):
        now += generator.expovariate(rate)
        times.append(now)
    return times


def in_order(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Arrivals by time; equal times keep their order."""
    return sorted(arrivals, key=lambda arrival: arrival.at)
