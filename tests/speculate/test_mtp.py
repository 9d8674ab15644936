from __future__ import annotations

from longspan.speculate.mtp import Mtp


def test_a_chain_is_used_up_as_the_answer_follows_it() -> None:
    proposer = Mtp()
    proposer.receive([5, 6, 7, 8])
    assert proposer.propose([], 3) == ([5, 6, 7], "", 1, False)
    assert proposer.propose([5, 6], 9) == ([7, 8], "", 3, False)
    proposer.observe([5])
    assert proposer.propose([], 9) == ([6, 7, 8], "", 2, False)
    assert not proposer.propose([6, 7, 8], 9).tokens
    assert not proposer.propose([6, 9], 9).tokens


def test_a_chain_ends_where_the_answer_leaves_it() -> None:
    proposer = Mtp()
    proposer.receive([5, 6, 7])
    proposer.observe([5, 9])
    assert not proposer.propose([], 9).tokens
    proposer.receive([1])
    assert proposer.propose([], 9).rank == 1


def test_an_answer_longer_than_the_chain_uses_it_up() -> None:
    proposer = Mtp()
    proposer.receive([5, 6])
    proposer.observe([5, 6, 7])
    assert not proposer.propose([], 9).tokens
