"""Arrivals: rates, bursts, ramps."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.bench.load.arrivals import Ramp, arrival_times
from longspan.errors import UsageError


@given(st.integers(1, 200), st.floats(0.1, 1000), st.floats(0.1, 50), st.integers(0, 99))
def test_the_last_request_arrives_when_the_rate_says(count: int, rate: float, burst: float, seed: int) -> None:
    times = arrival_times(count, rate, burst, None, seed)
    assert len(times) == count
    assert times == sorted(times)
    assert times[-1] == pytest.approx(count / rate)


def test_without_a_rate_all_arrive_at_once() -> None:
    assert arrival_times(3, math.inf, 1.0, None, 0) == [0.0, 0.0, 0.0]


def test_burstiness_is_the_shape_of_the_gaps() -> None:
    def variation(burst: float) -> float:
        times = arrival_times(4000, 10.0, burst, None, 1)
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        return statistics.pstdev(gaps) / statistics.mean(gaps)

    # The variation of a gamma distribution is 1 / sqrt(shape).
    for burst in (0.25, 1.0, 4.0):
        assert variation(burst) == pytest.approx(1 / math.sqrt(burst), rel=0.15)
    assert variation(math.inf) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("growth", ["linear", "exponential"])
def test_a_ramp_grows(growth: str) -> None:
    ramp = Ramp(growth, 1.0, 16.0)  # type: ignore[arg-type]
    assert (ramp.rate(0.0), ramp.rate(1.0)) == (1.0, 16.0)
    assert ramp.rate(0.5) == {"linear": 8.5, "exponential": 4.0}[growth]
    times = arrival_times(100, math.inf, math.inf, ramp, 0)
    assert times[0] == 1.0
    assert times[-1] - times[-2] == pytest.approx(1 / 16)


@pytest.mark.parametrize(("rate", "burst"), [(0.0, 1.0), (1.0, 0.0), (math.nan, 1.0)])
def test_what_cannot_be_is_refused(rate: float, burst: float) -> None:
    with pytest.raises(UsageError, match="above 0"):
        arrival_times(2, rate, burst, None, 0)


def test_a_ramp_from_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="above 0"):
        Ramp("linear", 0.0, 4.0)
