from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longspan.speculate.ngram_cache import NgramCache


def slow_follower(committed: list[int], stream: list[int]) -> int | None:
    """The rule word for word: count what followed each context, the longest context first."""
    for length in (4, 3, 2):
        if len(stream) < length:
            continue
        followers = [
            committed[index + length]
            for index in range(len(committed) - length)
            if committed[index : index + length] == stream[-length:]
        ]
        if not followers or (length == 2 and len(followers) < 2):
            continue
        most = max(followers.count(token) for token in followers)
        best = next(token for token in reversed(followers) if followers.count(token) == most)
        if most >= 0.5 * len(followers):
            return best
    return None


@given(
    committed=st.lists(st.integers(0, 2), max_size=80),
    tail=st.lists(st.integers(0, 2), max_size=6),
    budget=st.integers(1, 10),
    cut=st.integers(0, 80),
)
def test_the_most_frequent_follower_of_the_longest_context_is_drafted(
    committed: list[int], tail: list[int], budget: int, cut: int
) -> None:
    proposer = NgramCache()
    proposer.observe(committed[:cut])
    proposer.observe(committed[cut:])
    stream = committed + tail
    expected: list[int] = []
    while len(expected) < budget and (token := slow_follower(committed, stream + expected)) is not None:
        expected.append(token)
    draft = proposer.propose(tail, budget)
    assert list(draft.tokens) == expected
    assert not expected or draft.rank == len(tail) + 1


def test_memory_is_bounded_and_the_recent_contexts_stay() -> None:
    proposer = NgramCache(max_contexts=64)
    proposer.observe(range(5000))
    for table in (proposer._two, proposer._three, proposer._four):
        assert len(table.young) + len(table.old) <= 64
    proposer.observe([1, 2, 3, 4, 5, 9, 1, 2, 3, 4])
    assert list(proposer.propose([], 1).tokens) == [5]
