from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.sampling.selection import descending, highest, nucleus, pick

Values = npt.NDArray[np.float32]


@st.composite
def values(draw: st.DrawFn) -> Values:
    """Many or few values, with or without ties, above or below the size at which the methods change."""
    size = draw(st.one_of(st.integers(1, 80), st.integers(2040, 6000)))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    found = generator.standard_normal(size) * draw(st.sampled_from([0.3, 1.0, 4.0]))
    if draw(st.booleans()):
        found = np.round(found, draw(st.integers(0, 2)))
    return found.astype(np.float32)


@given(values=values(), data=st.data())
def test_highest_is_the_head_of_a_full_sort(values: Values, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(values) + 2))
    expected = np.argsort(-values, kind="stable")[:count]
    found = highest(values, count)
    assert found.tolist() == sorted(expected.tolist())
    assert descending(values, found).tolist() == expected.tolist()


@given(values=values(), share=st.floats(0.001, 0.999))
def test_nucleus_is_the_shortest_head_of_a_full_sort_that_reaches_the_share(values: Values, share: float) -> None:
    weights = np.exp(values - values.max())
    order = np.argsort(-weights, kind="stable")
    sums = np.cumsum(weights[order].astype(np.float64))
    count = len(nucleus(weights, share))
    assert nucleus(weights, share).tolist() == sorted(order[:count].tolist())
    slack = 1e-9 * sums[-1]
    assert sums[count - 1] >= share * sums[-1] - slack
    assert count == 1 or sums[count - 2] < share * sums[-1] + slack


@given(values=values(), draw=st.floats(0, 1, exclude_max=True))
def test_pick_is_the_inverse_of_the_running_sum(values: Values, draw: float) -> None:
    weights = np.exp(values - values.max())
    sums = np.cumsum(weights.astype(np.float64))
    index = pick(weights, draw)
    # Above the small size, blocks are summed in float32.
    slack = 1e-6 * sums[-1]
    assert sums[index] > draw * sums[-1] - slack
    assert index == 0 or sums[index - 1] <= draw * sums[-1] + slack


@pytest.mark.parametrize("size", [5, 64 * 40, 64 * 40 + 3])
@pytest.mark.parametrize("draw", [0.0, 0.3, 1 - 2.0**-53])
def test_pick_never_gives_a_weight_of_zero(size: int, draw: float) -> None:
    weights = np.zeros(size, np.float32)
    weights[size // 2] = 1.0
    assert pick(weights, draw) == size // 2
    weights[1] = 1e-30
    assert pick(weights, draw) == (1 if draw == 0.0 else size // 2)
