"""Choosing among many tokens without sorting all of them.

Every function breaks ties by the lower token id, so a result is a function of the values alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.intp]
Values = npt.NDArray[np.float32]

_BLOCK = 64
_SMALL = 2048
"""Below this many values the plain way is as fast as the clever one."""

_NUCLEUS_CUTS = (2.0**-6, 2.0**-14)
"""Weights, relative to the heaviest, above which the nucleus is looked for before all weights are sorted."""


def highest(values: Values, count: int) -> Indices:
    """Indices of the `count` highest values, ascending; all of them when there are fewer."""
    if count >= len(values):
        return np.arange(len(values))
    threshold = _lower_bound(values, count)
    candidates = np.flatnonzero(values >= threshold)
    found = values[candidates]
    return candidates[_at_least(found, _nth_highest(found, count), count)]


def descending(values: Values, indices: Indices) -> Indices:
    """`indices`, which ascend, in the order of their values, the highest first."""
    return indices[np.argsort(-values[indices], kind="stable")]


def nucleus(weights: Values, share: float) -> Indices:
    """Indices, ascending, of the fewest heaviest weights whose sum reaches `share` of the sum of all.

    weights: not negative, the heaviest is 1. share: in (0, 1). At least one index. Sums are float64, the heaviest
    first; only the values are sorted, and of those only the heavy ones when these are enough.
    """
    target = share * float(weights.sum(dtype=np.float64))
    for cut in _NUCLEUS_CUTS if len(weights) > _SMALL else ():
        heavy = weights >= cut
        if np.count_nonzero(heavy) > len(weights) // 4:
            break
        reached = _reach(weights[heavy], target)
        if reached is not None:
            return _at_least(weights, *reached)
    reached = _reach(weights, target)
    # Rounding may leave the sum of all a hair below the target: then nothing is cut.
    return np.arange(len(weights)) if reached is None else _at_least(weights, *reached)


def pick(weights: Values, draw: float) -> int:
    """The index where the running sum of the weights, in index order, first exceeds `draw` times their sum.

    weights: not negative, at least one above 0. draw: in [0, 1). Never an index of weight 0. Many weights are
    summed in blocks of 64 first (float32, then a float64 running sum over the blocks), and one by one only inside
    the block that the draw falls into.
    """
    if len(weights) <= _SMALL:
        sums = np.cumsum(weights, dtype=np.float64)
        return _exceeds(sums, draw * float(sums[-1]))
    whole = len(weights) // _BLOCK * _BLOCK
    blocks = weights[:whole].reshape(-1, _BLOCK).sum(axis=1)
    if whole < len(weights):
        blocks = np.append(blocks, weights[whole:].sum())
    sums = np.cumsum(blocks, dtype=np.float64)
    target = draw * float(sums[-1])
    block = _exceeds(sums, target)
    before = float(sums[block - 1]) if block else 0.0
    first = block * _BLOCK
    inside = np.cumsum(weights[first : first + _BLOCK], dtype=np.float64)
    return first + _exceeds(inside, target - before)


def _lower_bound(values: Values, count: int) -> np.float32:
    """A value that at least `count` of the values reach, found without looking at each of them twice.

    The maxima of disjoint blocks are values too, so at least `count` values reach the count-th highest maximum.
    """
    blocks = len(values) // _BLOCK
    if count * 4 > blocks:
        return _nth_highest(values, count)
    return _nth_highest(values[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(axis=1), count)


def _nth_highest(values: Values, count: int) -> np.float32:
    position = len(values) - count
    return np.float32(np.partition(values, position)[position])


def _at_least(values: Values, cut: np.float32, count: int) -> Indices:
    """The first `count` indices, ascending, when values above `cut` go before values equal to it.

    Exactly as if sorted by (highest value, lowest index); `cut` must be the count-th highest value.
    """
    kept = np.flatnonzero(values >= cut)
    surplus = len(kept) - count
    if surplus > 0:
        equal = np.flatnonzero(values[kept] == cut)
        kept = np.delete(kept, equal[len(equal) - surplus :])
    return kept


def _reach(weights: Values, target: float) -> tuple[np.float32, int] | None:
    """The weight at which the running sum, heaviest first, reaches the target, and how many that takes."""
    ordered = np.sort(weights)[::-1]
    # Converted first: a running sum that converts as it goes takes three times as long.
    sums = np.cumsum(ordered.astype(np.float64))
    if sums[-1] < target:
        return None
    last = int(np.searchsorted(sums, target, side="left"))
    return ordered[last], last + 1


def _exceeds(sums: npt.NDArray[np.float64], target: float) -> int:
    """The first index whose running sum exceeds `target`; the last that still grew when rounding lets none."""
    index = int(np.searchsorted(sums, target, side="right"))
    if index == len(sums):
        index = int(np.searchsorted(sums, sums[-1], side="left"))
    return index
