from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.speculate.ngram_suffix import LONGEST_MATCH, MAX_CANDIDATES, NgramSuffix
from longspan.speculate.proposer import Draft, Proposer


def fed(proposer: Proposer, tokens: Sequence[int], cuts: Sequence[int] = ()) -> Proposer:
    """The proposer after it observed the tokens, in pieces that end at `cuts`."""
    start = 0
    for end in [*sorted(cuts), len(tokens)]:
        proposer.observe(tokens[start:end])
        start = max(start, end)
    return proposer


def slow_draft(committed: list[int], tail: list[int], budget: int, least: int) -> list[int]:
    """The rule word for word: try every earlier occurrence."""
    stream = committed + tail
    best = best_length = 0
    for end in range(1, len(committed) + 1):
        if end == len(stream):
            continue
        length = 0
        while length < min(end, LONGEST_MATCH) and committed[end - 1 - length] == stream[-1 - length]:
            length += 1
        if length >= least and length >= best_length:  # the most recent among equals
            best, best_length = end, length
    drafted: list[int] = []
    while best_length and len(drafted) < min(budget, 2 * best_length):
        drafted.append((stream + drafted)[best + len(drafted)])
    return drafted


@given(
    committed=st.lists(st.integers(0, 2), max_size=MAX_CANDIDATES),
    tail=st.lists(st.integers(0, 2), max_size=8),
    budget=st.integers(1, 20),
    least=st.integers(1, 4),
    cuts=st.lists(st.integers(0, 60), max_size=4),
)
def test_the_draft_is_what_followed_the_longest_most_recent_match(
    committed: list[int], tail: list[int], budget: int, least: int, cuts: list[int]
) -> None:
    proposer = fed(NgramSuffix(least), committed, [cut for cut in cuts if cut <= len(committed)])
    assert list(proposer.propose(tail, budget).tokens) == slow_draft(committed, tail, budget, least)


def test_a_miss_proposes_nothing() -> None:
    assert fed(NgramSuffix(3), [1, 2, 3, 4, 1, 2]).propose([], 8) == Draft()


def test_the_tail_is_part_of_the_query_and_of_what_is_copied() -> None:
    proposer = fed(NgramSuffix(2), [1, 2, 3, 4, 5, 6, 1, 2])
    assert list(proposer.propose([3, 4], 8).tokens) == [5, 6, 1, 2, 3, 4, 5, 6]
    assert list(proposer.propose([9], 8).tokens) == []


def test_a_draft_is_at_most_twice_as_long_as_its_match_and_ranked_by_it() -> None:
    proposer = fed(NgramSuffix(2), [*range(20), 50, 5, 6, 7])
    draft = proposer.propose([], 100)
    assert (list(draft.tokens), draft.rank) == ([8, 9, 10, 11, 12, 13], 3)
    assert len(proposer.propose([], 2).tokens) == 2


def test_a_period_is_continued_beyond_the_committed_tokens() -> None:
    draft = fed(NgramSuffix(3), [1, 2, 3, 1, 2, 3, 1, 2, 3]).propose([], 12)
    assert list(draft.tokens) == [1, 2, 3] * 4


@pytest.mark.parametrize("least", [0, 1, 8, 50])
def test_a_seed_has_one_to_eight_tokens(least: int) -> None:
    seed = min(8, max(1, least))
    tokens = list(range(seed))
    proposer = fed(NgramSuffix(least), [*tokens, 100, *tokens])
    assert list(proposer.propose([], 1).tokens) == [100]
    if seed > 1:
        assert not fed(NgramSuffix(least), [*tokens[1:], 100, *tokens[1:]]).propose([], 1).tokens


def test_memory_is_bounded_and_the_recent_tokens_stay() -> None:
    proposer = NgramSuffix(3, max_tokens=100)
    for token in range(1000):
        proposer.observe([token % 37 if token > 900 else token])
    assert len(proposer.tokens) <= 100
    assert len(proposer.propose([], 10).tokens) == 10
