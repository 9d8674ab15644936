from __future__ import annotations

from collections.abc import Sequence

from longspan.speculate.acceptance import CommonBooks, SequenceBooks
from longspan.speculate.composite import Chained, Ranked
from longspan.speculate.mtp import Mtp
from longspan.speculate.ngram_suffix import NgramSuffix
from longspan.speculate.proposer import Draft, Proposer
from longspan.speculate.proposers import PROPOSERS


class Fixed(Proposer):
    """Always drafts the same tokens at the tip."""

    def __init__(self, name: str, tokens: Sequence[int]) -> None:
        self.name = name
        self._tokens = tokens

    def propose(self, tail: Sequence[int], budget: int) -> Draft:
        return Draft(() if tail else self._tokens[:budget])


def books() -> SequenceBooks:
    return SequenceBooks(CommonBooks())


def test_a_chain_has_an_mtp_prefix_and_an_ngram_tail_each_in_its_own_book() -> None:
    mtp, suffix = Mtp(), NgramSuffix(2)
    both = Chained("mtp+ngram", (mtp, suffix))
    assert both.uses_head
    both.observe([1, 2, 3, 4, 5, 6, 1])
    both.receive([2, 3])
    prefix = both.propose([], 8)
    assert (list(prefix.tokens), prefix.book) == ([2, 3], "mtp")
    tail = both.propose([2, 3], 8)
    assert (list(tail.tokens[:3]), tail.book) == ([4, 5, 6], "ngram-suffix")
    # The head's chain came true and the tail did not: that is no rejection of the head.
    both.observe([2, 3, 9])
    assert not both.propose([], 8).tokens


def test_the_draft_that_is_expected_to_bring_most_is_taken() -> None:
    own = books()
    ranked = Ranked("auto", (Fixed("good", [1, 2, 3]), Fixed("bad", [7, 8, 9])), own)
    for _ in range(30):
        for rank in (1, 2, 3):
            own.record("good", rank, True)
            own.record("bad", rank, False)
    assert ranked.propose([], 8).book == "good"


def test_one_that_is_passed_over_is_heard_again_when_it_would_have_been_right() -> None:
    own = books()
    ranked = Ranked("auto", (Fixed("loud", [1, 2, 3]), Fixed("quiet", [7, 8, 9])), own)
    for _ in range(30):
        own.record("quiet", 1, False)
    heard = None
    for turn in range(200):
        if ranked.propose([], 8).book == "quiet":
            heard = turn
            break
        ranked.observe([7, 8, 9])
        own.record("loud", 1, False)
    assert heard is not None and heard > 0


def test_every_name_makes_its_proposer() -> None:
    for name, make in PROPOSERS.items():
        proposer = make(books())
        assert proposer.name == name
        proposer.observe([1, 2, 3, 1, 2])
        proposer.receive([3])
        assert len(proposer.propose([], 4).tokens) <= 4
