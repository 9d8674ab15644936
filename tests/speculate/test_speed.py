"""Proposers must cost next to nothing beside an iteration, and no more in a long context than in a short one.

The limits are multiples of what a plain loop takes on the same machine at the same time, so that a slow or busy
machine does not fail them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest

from longspan.sampling.draw import mix
from longspan.speculate.ngram_cache import NgramCache
from longspan.speculate.ngram_edit import NgramEdit
from longspan.speculate.ngram_suffix import NgramSuffix
from longspan.speculate.proposer import Proposer

CONTEXT = 8192
PROPOSERS = [NgramSuffix, NgramEdit, NgramCache]

PROPOSE_LIMIT = 30e-6
OBSERVE_LIMIT = 2e-6
REFERENCE = 0.45e-6
"""Seconds that ten dictionary entries take on a quiet core of the machine that the limits were set for."""

TEXTS: dict[str, Sequence[int]] = {
    "copied": [mix(index % 300) % 32000 for index in range(CONTEXT)],
    "novel": [mix(index) % 32000 for index in range(CONTEXT)],
    "few words": [mix(index) % 3 for index in range(CONTEXT)],
    "one word": [7] * CONTEXT,
}


def shortest(action: Callable[[], object], count: int, rounds: int = 30) -> float:
    """Seconds of one of `count` units that `action` does, in the best round."""
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - started)
    return best / count


def slowness() -> float:
    """How many times slower than the reference this machine is now; at least 1."""
    numbers = range(1000)
    return max(1.0, shortest(lambda: {number: number for number in numbers}, 100) / REFERENCE)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("make", PROPOSERS)
def test_sixteen_tokens_are_proposed_in_thirty_microseconds(make: Callable[[], Proposer], text: str) -> None:
    proposer = make()
    proposer.observe(TEXTS[text])
    for tail in ([], list(TEXTS[text][-40:])):

        def propose(tail: Sequence[int] = tuple(tail)) -> None:
            for _ in range(20):
                proposer.propose(tail, 16)

        assert shortest(propose, 20) < 1.5 * PROPOSE_LIMIT * slowness()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("make", PROPOSERS)
def test_a_committed_token_is_observed_in_two_microseconds(make: Callable[[], Proposer], text: str) -> None:
    tokens = TEXTS[text]

    def observe() -> None:
        proposer = make()
        for start in range(0, 2048, 8):
            proposer.observe(tokens[start : start + 8])

    assert shortest(observe, 2048, rounds=8) < 1.5 * OBSERVE_LIMIT * slowness()


@pytest.mark.parametrize("make", PROPOSERS)
def test_a_lookup_takes_no_longer_in_a_long_context(make: Callable[[], Proposer]) -> None:
    seconds = []
    for length in (1024, CONTEXT):
        proposer = make()
        proposer.observe(TEXTS["few words"][:length])

        def propose(proposer: Proposer = proposer) -> None:
            for _ in range(20):
                proposer.propose([], 16)

        seconds.append(shortest(propose, 20))
    assert seconds[1] < 3 * seconds[0] + 5e-6
