from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.speculate.ngram_edit import LONGEST_EDIT, NgramEdit
from longspan.speculate.ngram_suffix import NgramSuffix

PASSAGE = list(range(100, 140))


def copying(written: int = 12) -> NgramEdit:
    """A proposer that has seen the passage once and its first `written` tokens again."""
    proposer = NgramEdit()
    proposer.observe([*PASSAGE, 1, 2, 3, *PASSAGE[:written]])
    proposer.propose([], 8)
    return proposer


def test_it_copies_like_the_suffix_proposer() -> None:
    draft = copying().propose([], 8)
    assert (list(draft.tokens), draft.book) == (PASSAGE[12:20], NgramSuffix.name)


def test_after_a_replaced_token_the_copy_goes_on_behind_it() -> None:
    proposer = copying()
    proposer.observe([900])
    draft = proposer.propose([], 30)
    assert (list(draft.tokens), draft.book) == (PASSAGE[13 : 13 + LONGEST_EDIT], "")
    assert draft.rank == 1


def test_a_longer_name_for_a_shorter_one_is_found_by_the_token_behind_it() -> None:
    proposer = copying()
    proposer.observe([900, 901, 902, PASSAGE[13]])
    assert list(proposer.propose([], 4).tokens) == PASSAGE[14:18]


def test_a_shorter_name_for_a_longer_one_is_found_by_the_token_behind_it() -> None:
    proposer = copying()
    proposer.observe([900, PASSAGE[16]])
    assert list(proposer.propose([], 4).tokens) == PASSAGE[17:21]


def test_a_match_where_the_copy_goes_on_ranks_as_the_whole_run() -> None:
    proposer = copying()
    proposer.observe([900, *PASSAGE[13:17]])
    draft = proposer.propose([], 4)
    assert (list(draft.tokens), draft.book, draft.rank) == (PASSAGE[17:21], NgramSuffix.name, 16)
    deeper = proposer.propose(PASSAGE[17:21], 4)
    assert (list(deeper.tokens), deeper.rank) == (PASSAGE[21:25], 20)


def test_a_new_name_that_stands_elsewhere_too_does_not_lead_there() -> None:
    proposer = NgramEdit()
    name, other = [1, 2, 3, 4], [1, 2, 3, 5]
    repeat = [*PASSAGE[:10], *name, *PASSAGE[10:20], *name, *PASSAGE[20:]]
    proposer.observe([*repeat, *PASSAGE[:10], *other, *PASSAGE[10:20], *name[:3]])
    assert proposer.propose([], 1).tokens == name[3:]
    proposer.observe(other[3:])
    assert list(proposer.propose([], 8).tokens) == PASSAGE[20:28]


@pytest.mark.parametrize(("copied", "new"), [(12, 1), (16, 2), (39, 3)])
def test_the_longer_the_copy_the_longer_the_edit_that_is_expected(copied: int, new: int) -> None:
    proposer = copying(copied)
    for token in range(900, 900 + new):
        proposer.observe([token])
        assert proposer.propose([], 8).tokens
    proposer.observe([950])
    assert not proposer.propose([], 8).tokens


def test_a_text_that_leaves_for_good_is_not_followed() -> None:
    proposer = copying(24)
    proposer.observe(range(900, 899 + LONGEST_EDIT))
    proposer.observe([PASSAGE[28]])
    assert list(proposer.propose([], 2).tokens) == PASSAGE[29:31]
    proposer = copying(24)
    proposer.observe(range(900, 901 + LONGEST_EDIT))
    proposer.observe([PASSAGE[28]])
    assert not proposer.propose([], 8).tokens


@pytest.mark.parametrize("copied", [3, 4, 11])
def test_a_chance_match_is_no_copy(copied: int) -> None:
    proposer = copying(copied)
    proposer.observe([900])
    assert not proposer.propose([], 8).tokens


@given(
    tokens=st.lists(st.integers(0, 3), max_size=120),
    cuts=st.lists(st.integers(0, 120), max_size=30),
    limit=st.integers(8, 40),
)
def test_it_never_trips_whatever_is_written(tokens: list[int], cuts: list[int], limit: int) -> None:
    proposer = NgramEdit(2, max_tokens=limit)
    start = 0
    for end in [*sorted(cut for cut in cuts if cut < len(tokens)), len(tokens)]:
        proposer.observe(tokens[start:end])
        start = end
        tail: list[int] = []
        for _ in range(3):
            draft = proposer.propose(tail, 5)
            assert len(draft.tokens) <= 5
            tail += draft.tokens
