from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from longspan.sampling.draw import uniform
from tests.sampling.slow_sampler import slow_uniform, splitmix64


def test_the_generator_of_the_oracle_is_splitmix64() -> None:
    """Outputs published with the reference implementation for the state 1234567."""
    assert splitmix64(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(seed=st.integers(0, 2**64 - 1), position=st.integers(0, 300))
def test_equals_the_generator_run_from_its_own_state(seed: int, position: int) -> None:
    assert uniform(seed, position) == slow_uniform(seed, position)


def test_values_are_pinned() -> None:
    """A draw is part of what a seed promises: it must never change, on any machine."""
    assert [uniform(0, 0), uniform(7, 12), uniform(2**64 - 1, 8191)] == [
        0.6524484863740322,
        0.010264399283812176,
        0.9065873334251889,
    ]


@given(seed=st.integers(0, 2**64 - 1), position=st.integers(0, 2**40))
def test_in_range(seed: int, position: int) -> None:
    assert 0.0 <= uniform(seed, position) < 1.0


def test_uniform_and_independent_over_positions_and_seeds() -> None:
    """Chi-square over 16 × 16 cells of neighbouring draws: along the positions and along the seeds."""
    draws = np.array([[uniform(seed, position) for position in range(200)] for seed in range(200)])
    for first, second in ((draws[:, :-1], draws[:, 1:]), (draws[:-1], draws[1:])):
        counts, _, _ = np.histogram2d(first.ravel(), second.ravel(), bins=16, range=[[0, 1], [0, 1]])
        expected = first.size / 256
        statistic = ((counts - expected) ** 2 / expected).sum()
        # 255 degrees of freedom: mean 255, deviation 22.6.
        assert 255 - 5 * 22.6 < statistic < 255 + 5 * 22.6
