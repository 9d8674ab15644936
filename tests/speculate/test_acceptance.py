from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.sampling.draw import uniform
from longspan.speculate.acceptance import BUCKET_OF_RANK, Book, CommonBooks, SequenceBooks, starting_chance
from longspan.speculate.proposer import Draft


def feed(books: SequenceBooks, name: str, chances: list[float], chains: int, seed: int = 1) -> None:
    """Chains of drafts whose token of rank i comes true with chances[i - 1], each judged to its first failure."""
    draws = 0
    for _ in range(chains):
        for rank, chance in enumerate(chances, start=1):
            draws += 1
            accepted = uniform(seed, draws) < chance
            books.record(name, rank, accepted)
            if not accepted:
                break


def chances(books: SequenceBooks, name: str, count: int) -> list[float]:
    return books.chances(Draft(tuple(range(count)), name))


def test_chances_are_learned_by_rank() -> None:
    true = [0.63, 0.70, 0.77, 0.5]
    books = SequenceBooks(CommonBooks())
    feed(books, "mtp", true, 1500)
    assert chances(books, "mtp", 4) == pytest.approx(true, abs=0.1)


def test_a_fit_recovers_the_decay_of_a_chain() -> None:
    true = [0.796 * 0.945 ** (rank - 1) for rank in range(1, 9)]
    common = CommonBooks()
    feed(SequenceBooks(common), "mtp", true, 4000)
    first, decay = common.fits()["mtp"]
    assert first == pytest.approx(0.796, abs=0.06)
    assert decay == pytest.approx(0.945, abs=0.05)


def test_ranks_that_were_never_seen_follow_the_fit() -> None:
    common = CommonBooks()
    feed(SequenceBooks(common), "x", [0.9, 0.72, 0.576], 2000)
    assert common.chances("x", 4)[3] == pytest.approx(0.9 * 0.8**3, abs=0.12)


def test_a_new_sequence_leans_on_the_others_and_then_on_itself() -> None:
    common = CommonBooks()
    feed(SequenceBooks(common), "x", [0.9] * 4, 500)
    new = SequenceBooks(common)
    assert chances(new, "x", 1) == pytest.approx([0.9], abs=0.05)
    feed(new, "x", [0.1] * 4, 40, seed=5)
    assert chances(new, "x", 1)[0] < 0.3
    assert chances(SequenceBooks(common), "x", 1)[0] > 0.7


def test_what_is_seen_at_one_rank_tells_about_the_others() -> None:
    common = CommonBooks()
    bad, good = SequenceBooks(common), SequenceBooks(common)
    for _ in range(60):
        bad.record("ngram-suffix", 20, False)
        good.record("ngram-suffix", 20, True)
    at_five = Draft((1,), "ngram-suffix", 5)
    assert bad.chances(at_five)[0] < 0.5 < good.chances(at_five)[0]


def test_a_change_is_followed() -> None:
    books = SequenceBooks(CommonBooks())
    feed(books, "x", [1.0], 300)
    assert chances(books, "x", 1)[0] > 0.97
    feed(books, "x", [0.0], 300)
    assert chances(books, "x", 1)[0] < 0.35


def test_a_draft_that_was_not_sent_is_judged_up_to_its_first_failure() -> None:
    books = SequenceBooks(CommonBooks())
    books.judge(Draft((1, 2, 3, 4), "x", 2), (1, 2, 9, 4))
    own = books._own["x"]
    assert [own.trials[BUCKET_OF_RANK[rank]] for rank in (2, 3, 4)] == [1.0, 1.0, 1.0]
    assert [own.hits[BUCKET_OF_RANK[rank]] for rank in (2, 3, 4)] == [1.0, 1.0, 0.0]
    assert own.trials[BUCKET_OF_RANK[5]] == 0.0
    books.judge(Draft((1, 2), "y"), (1,))
    assert sum(books._own["y"].trials) == 1.0


def test_what_may_follow_counts_when_drafts_are_compared() -> None:
    books = SequenceBooks(CommonBooks())
    chain = Draft((1, 2, 3, 4), "mtp", continues=False)
    copied = Draft((1, 2, 3, 4), "mtp")
    assert books.expected(chain) < books.expected(copied) < 32


@given(
    records=st.lists(st.tuples(st.integers(1, 200), st.booleans()), max_size=80),
    rank=st.integers(1, 100),
    count=st.integers(1, 70),
)
def test_chances_stay_between_never_and_certain(records: list[tuple[int, bool]], rank: int, count: int) -> None:
    common = CommonBooks()
    books = SequenceBooks(common)
    for at, accepted in records:
        books.record("ngram-suffix", at, accepted)
    found = books.chances(Draft((0,) * count, "ngram-suffix", rank))
    assert len(found) == count
    assert all(0 < chance < 1 for chance in found)
    assert 0 < books.expected(Draft((0,) * count, "ngram-suffix", rank)) < 32


def test_an_empty_book_has_no_fit() -> None:
    assert Book(0.9).fit() is None
    assert CommonBooks().fits() == {}


def test_long_matches_that_came_true_say_nothing_good_about_short_ones_elsewhere() -> None:
    """A text that was copied word for word must not make chance matches of the next text look certain."""
    books = CommonBooks()
    copied = SequenceBooks(books)
    for _ in range(500):
        copied.record("ngram-suffix", 40, True)
    short, long = books.chances("ngram-suffix", 40)[2], books.chances("ngram-suffix", 40)[-1]
    assert short <= starting_chance("ngram-suffix", 3) + 0.01
    assert long > 0.98
