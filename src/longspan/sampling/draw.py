"""The random draw of a position: a pure function of (seed, position), the same on every machine.

Two finalisers of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014) in
counter mode: the first turns the seed into a key, the second walks the key by the golden-ratio increment, once a
position. There is no state, so nothing but (seed, position) can move a draw: no batch, split, draft or replay.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def uniform(seed: int, position: int) -> float:
    """A float in [0, 1) with 53 random bits for the token at `position`, from the low 64 bits of the seed."""
    key = mix((seed + _GOLDEN) & _MASK)
    return (mix((key + (position + 1) * _GOLDEN) & _MASK) >> 11) * 2.0**-53


def mix(value: int) -> int:
    """A bijection of 64-bit numbers in which every bit of the result depends on every bit of `value`."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
