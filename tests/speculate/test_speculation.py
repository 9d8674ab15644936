from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.errors import UsageError
from longspan.schedule.geometry import Geometry
from longspan.schedule.request import SequenceRequest
from longspan.schedule.sequence import Sequence, Status
from longspan.schedule.span import Phase, Sample, Span, StageTiming
from longspan.speculate.acceptance import SequenceBooks
from longspan.speculate.proposers import proposer_maker
from longspan.speculate.speculation import Speculation, SpeculationPolicy, _shares
from longspan.speculate.windows import Windows
from tests.speculate.proposers import Foreseeing

SINGLE = Geometry(exact_rows=1, sub_batches=1)
ANSWER = [index % 250 for index in range(400)]


def cost(rows: int, history: float) -> float:
    return 0.003 + 0.0012 * rows


def speculation(policy: SpeculationPolicy, chance: float = 1.0) -> Speculation:
    return Speculation(
        policy,
        lambda books: Foreseeing([1, 2, *ANSWER], chance),
        cost=cost,
        rows=63,
        vocabulary=256,
    )


def started(speculation: Speculation, identity: int, max_tokens: int = 390) -> Windows:
    """A sequence whose first token is there."""
    sequence = Sequence(identity, SequenceRequest(prompt=(1, 2), max_tokens=max_tokens), 0.0, 1000)
    sequence.slot, sequence.status = identity, Status.RUNNING
    windows = speculation.windows(sequence)
    windows.commit(sequence.prefill_span(2), (Sample(0, 1, ANSWER[0]),))
    return windows


def timings(stages: int) -> list[StageTiming]:
    return [StageTiming(stage, 0.0, 0.0, cost(1, 0.0)) for stage in range(stages)]


def go_round(speculation: Speculation, link: float) -> None:
    """Plain iterations over two stages, often enough for the link to be known."""
    for _ in range(50):
        speculation.measured(link + 2 * cost(1, 0.0), timings(2), SINGLE)


def trusted(speculation: Speculation) -> Speculation:
    """The same, after its proposer was right for a long time."""
    books = SequenceBooks(speculation.books)
    for count in range(3000):
        books.record("foreseeing", 1 + count % 64, True)
    return speculation


def answered(span: Span) -> tuple[Sample, ...]:
    """What the target says: always the answer."""
    return tuple(Sample(0, row, ANSWER[span.start + row + 1 - 2]) for row in span.sample_rows)


def test_every_ready_sequence_gets_a_row_before_anybody_gets_a_draft() -> None:
    dealer = speculation(SpeculationPolicy(width=16, depth=1))
    ready = [started(dealer, identity) for identity in range(8)]
    spans = dealer.deal(ready, [], 10, 8, 0.0)
    assert sorted(span.sequence for span in spans) == list(range(8))
    assert sum(len(span.tokens) for span in spans) == 10


def test_windows_on_a_guess_fill_what_independent_sequences_leave() -> None:
    dealer = speculation(SpeculationPolicy(width=4, depth=3))
    first, second, third = (started(dealer, identity) for identity in range(3))
    dealer.deal([first], [], 63, 1, 0.0)
    dealer.deal([third], [], 63, 1, 0.0)
    spans = dealer.deal([second], [first, third], 63, 2, 0.0)
    assert [(span.sequence, len(span.tokens)) for span in spans] == [(1, 4), (0, 4)]
    assert first.in_flight == 2
    # The one with fewest drafts on its way is next, and nobody goes deeper than allowed.
    spans = dealer.deal([], [first, second, third], 63, 1, 0.0)
    assert [span.sequence for span in spans] == [1]
    for _ in range(10):
        dealer.deal([], [first, second, third], 63, 3, 0.0)
    assert [windows.in_flight for windows in (first, second, third)] == [3, 3, 3]


def test_the_last_rows_before_the_token_limit_wait_for_nobody() -> None:
    dealer = speculation(SpeculationPolicy(width=8, depth=8))
    windows = started(dealer, 0, max_tokens=20)
    sent = dealer.deal([windows], [], 63, 1, 0.0)
    while spans := dealer.deal([], [windows], 63, 1, 0.0):
        sent += spans
    assert [len(span.tokens) for span in sent] == [8, 8, 3]


def test_a_group_that_is_complete_takes_no_windows_on_a_guess() -> None:
    dealer = speculation(SpeculationPolicy(width=4, depth=8))
    first, second = (started(dealer, identity) for identity in range(2))
    dealer.deal([first], [], 63, 1, 0.0)
    spans = dealer.deal([second], [first], 63, 1, 0.0)
    assert [span.sequence for span in spans] == [1]


def test_the_rows_of_an_iteration_are_never_exceeded() -> None:
    dealer = speculation(SpeculationPolicy(width=64, depth=8))
    windows = [started(dealer, identity) for identity in range(4)]
    spans = dealer.deal(windows[:2], [], 63, 4, 0.0)
    assert sum(len(span.tokens) for span in spans) == 63
    more = dealer.deal(windows[2:3], windows[:2], 20, 4, 0.0)
    assert sum(len(span.tokens) for span in more) == 20


@pytest.mark.parametrize("link", [0.0, 0.2])
def test_one_sequence_fills_the_ring_and_nothing_more(link: float) -> None:
    dealer = trusted(speculation(SpeculationPolicy()))
    windows = started(dealer, 0)
    plain = 2 * cost(1, 0.0)
    for _ in range(50):
        dealer.measured(link + plain, timings(2), SINGLE)
    dealer.refresh(1, 1, 100.0, 0.0)
    spans = dealer.deal([windows], [], 63, 1, 0.0)
    while more := dealer.deal([], [windows], 63, 1, 0.0):
        spans += more
    assert all(before.end == after.start for before, after in pairwise(spans))
    assert all(span.phase is Phase.VERIFY for span in spans)
    busy = sum(cost(len(span.tokens), 0.0) for span in spans)
    trip = link + 2 * cost(len(spans[0].tokens), 0.0)
    assert 0.85 * trip < busy < trip + cost(len(spans[-1].tokens), 0.0)
    # What comes back makes room for as much.
    first = spans[0]
    dealer.returned([first], 0.3)
    windows.commit(first, answered(first))
    assert dealer.deal([], [windows], 63, 1, 0.3)


def test_figures_say_what_was_decided_and_why() -> None:
    dealer = trusted(speculation(SpeculationPolicy()))
    windows = started(dealer, 0)
    before = dealer.statistics(0.0)
    assert (before.trip_seconds, before.stage_seconds) == (0.0, 0.0)
    go_round(dealer, 0.1)
    dealer.refresh(1, 1, 100.0, 0.0)
    spans = dealer.deal([windows], [], 63, 1, 0.0)
    dealer.returned(spans, 0.2)
    windows.commit(spans[0], answered(spans[0]))
    known = dealer.statistics(0.2)
    assert known.trip_seconds == pytest.approx(0.1 + 2 * cost(1, 0.0))
    assert known.stage_seconds == pytest.approx(cost(1, 0.0))
    assert known.windows_by_rows[len(spans[0].tokens) - 1] == 1
    assert known.fits["foreseeing"][0] > 0.8
    assert known.accepted_by_proposer["foreseeing"] > 0
    assert known.seconds == pytest.approx(0.2)


def test_a_lost_ring_gives_everything_back() -> None:
    dealer = speculation(SpeculationPolicy())
    windows = started(dealer, 0)
    dealer.measured(0.1, timings(2), SINGLE)
    dealer.refresh(1, 1, 100.0, 0.0)
    dealer.deal([windows], [], 63, 1, 0.0)
    assert dealer.pace.credits.seconds > 0
    dealer.lost()
    windows.sequence.rewind()
    windows.forget()
    assert dealer.pace.credits.seconds == 0 and dealer.ledger.rows == 0


@given(
    wishes=st.lists(
        st.lists(st.floats(0.01, 1.0), max_size=8).map(lambda each: sorted(each, reverse=True)), max_size=6
    ),
    rows=st.integers(0, 40),
)
def test_shares_are_the_likeliest_drafts_of_all(wishes: list[list[float]], rows: int) -> None:
    shares = _shares(wishes, rows)
    assert sum(shares) == min(rows, sum(map(len, wishes)))
    granted = sorted((chance for wish, share in zip(wishes, shares, strict=True) for chance in wish[:share]))
    every = sorted(chance for wish in wishes for chance in wish)
    assert granted == every[len(every) - len(granted) :]


@pytest.mark.parametrize(
    "values", [{"width": 4}, {"depth": 2}, {"width": 0, "depth": 1}, {"width": 4, "depth": 99}]
)
def test_a_policy_that_makes_no_sense_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        SpeculationPolicy(**values)


def test_an_unknown_proposer_is_refused_with_the_list_of_known_ones() -> None:
    with pytest.raises(UsageError, match="ngram-suffix"):
        proposer_maker("psychic")


def test_only_a_few_let_the_head_draft_behind_their_prompts() -> None:
    """All rows of a prompt pass the output matrix for it."""
    dealer = trusted(speculation(SpeculationPolicy()))
    go_round(dealer, 0.1)
    dealer.refresh(1, 1, 100.0, 0.0)
    alive = [started(dealer, identity) for identity in range(4)]
    assert all(windows.drafts_early for windows in alive)
    alive += [started(dealer, identity) for identity in range(4, 16)]
    assert not any(windows.drafts_early for windows in alive)
    for windows in alive[1:]:
        windows.sequence.status = Status.FINISHED
    assert started(dealer, 16).drafts_early and alive[0].drafts_early


def test_neighbours_wait_for_each_other_unless_drafts_are_sent_on_a_long_ring() -> None:
    for link, waits in ((0.5, False), (0.0, True)):
        dealer = speculation(SpeculationPolicy())
        go_round(dealer, link)
        dealer.refresh(2, 1, 100.0, 0.0)
        assert dealer.in_step
        for _ in range(20):
            dealer.pace.sent(1, 8)
        assert dealer.in_step is waits


def test_in_a_crowd_drafts_that_break_their_promise_count_for_less() -> None:
    """Of many drafts those are sent that promise most, and so those of which too much is expected."""
    dealer = trusted(speculation(SpeculationPolicy()))
    go_round(dealer, 0.5)
    dealer.refresh(2, 2, 100.0, 0.0)
    ready = [started(dealer, identity) for identity in range(2)]
    for count in range(8):
        spans = dealer.deal(ready, [], 63, 2, 0.0)
        dealer.returned(spans, 0.0)
        for windows, span in zip(ready, sorted(spans, key=lambda span: span.slot), strict=True):
            sent = len(span.tokens)
            assert sent > 1 or count > 0
            windows.commit(span, tuple(Sample(0, row, 255) for row in span.sample_rows))
    assert dealer.books.gains("foreseeing").factor < 0.8
