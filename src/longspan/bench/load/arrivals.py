"""When the requests of an open load arrive. Pure; vLLM's `bench serve` has the same arrivals."""

from __future__ import annotations

import itertools
import math
import random
from typing import Literal

import msgspec

from longspan.errors import UsageError

Growth = Literal["linear", "exponential"]


class Ramp(msgspec.Struct, frozen=True):
    """A rate that grows from `start` to `end` requests a second over the requests."""

    growth: Growth
    start: float
    end: float

    def __post_init__(self) -> None:
        if not (0 < self.start < math.inf and 0 < self.end < math.inf):
            raise UsageError(
                f"a ramp goes from {self.start:g} to {self.end:g}; both rates must be above 0 and finite"
            )

    def rate(self, progress: float) -> float:
        """Requests a second at a progress within 0 and 1."""
        if self.growth == "linear":
            return self.start + (self.end - self.start) * progress
        return self.start * float((self.end / self.start) ** progress)


def arrival_times(count: int, rate: float, burstiness: float, ramp: Ramp | None, seed: int) -> list[float]:
    """Seconds of `count` arrivals after the start.

    rate: requests a second; infinite: all at once. burstiness: shape of the gamma distribution of the gaps: 1 is a
    Poisson process, less comes in bursts, more is even, infinite is a clock. ramp: instead of one rate.
    At one rate the times are stretched so that the last request arrives after count / rate seconds.
    Raises UsageError when a rate or the burstiness is not positive.
    """
    if not rate > 0 or not burstiness > 0:
        raise UsageError(f"rate {rate:g} and burstiness {burstiness:g} must both be above 0")
    generator = random.Random(seed)
    gaps = []
    for index in range(count):
        now = rate if ramp is None else ramp.rate(index / max(count - 1, 1))
        if math.isinf(now):
            gaps.append(0.0)
        elif math.isinf(burstiness):
            gaps.append(1 / now)
        else:
            gaps.append(generator.gammavariate(burstiness, 1 / (now * burstiness)))
    times = list(itertools.accumulate(gaps))
    if ramp is None and times and times[-1] > 0:
        stretch = count / rate / times[-1]
        times = [time * stretch for time in times]
    return times
