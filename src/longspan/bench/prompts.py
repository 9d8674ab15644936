"""Prompts of a given length, the same in every run."""

from __future__ import annotations

import numpy as np

_FIRST_ORDINARY = 300
"""Token ids below are bytes and control tokens in most vocabularies."""


def prompt_of_length(vocabulary: int, length: int, seed: int) -> tuple[int, ...]:
    """`length` token ids, drawn with `seed`. What they say does not matter where only time is measured."""
    first = _FIRST_ORDINARY if vocabulary > 2 * _FIRST_ORDINARY else 1
    return tuple(int(token) for token in np.random.default_rng(seed).integers(first, vocabulary, length))
