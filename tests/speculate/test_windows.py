from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Tokens

import pytest

from longspan.schedule.request import SequenceRequest
from longspan.schedule.sequence import Sequence
from longspan.schedule.span import DraftRequest, Phase, Sample, Span
from longspan.speculate.acceptance import CommonBooks, SequenceBooks
from longspan.speculate.ledger import Ledger
from longspan.speculate.mtp import Mtp
from longspan.speculate.proposer import Draft, NoProposer, Proposer
from longspan.speculate.windows import Windows

PROMPT = (1, 2, 3)
ANSWER = (10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21)


class Scripted(Proposer):
    """Drafts one given list behind a given number of committed tokens, and nothing elsewhere."""

    name = "scripted"

    def __init__(self, drafts: dict[int, Tokens[int]]) -> None:
        self.drafts = drafts
        self.observed: list[int] = []
        self.asked = 0
        self.ended = 0
        self.wake: Callable[[], None] = lambda: None

    def attach(self, wake: Callable[[], None]) -> None:
        self.wake = wake

    def end(self) -> None:
        self.ended += 1

    def observe(self, committed: Tokens[int]) -> None:
        self.observed += committed

    def propose(self, tail: Tokens[int], budget: int) -> Draft:
        self.asked += 1
        known = self.drafts.get(len(self.observed), ())
        if list(known[: len(tail)]) != list(tail):
            return Draft()
        return Draft(known[len(tail) : len(tail) + budget], rank=len(tail) + 1)


class Fixture:
    """Windows of one sequence whose prompt is done and whose first token, 10, is committed."""

    def __init__(
        self, proposer: Proposer, *, max_tokens: int = 12, end_tokens: frozenset[int] = frozenset()
    ) -> None:
        request = SequenceRequest(prompt=PROMPT, max_tokens=max_tokens, end_tokens=end_tokens)
        self.sequence = Sequence(5, request, 0.0, 100)
        self.sequence.slot = 2
        self.ledger = Ledger()
        self.books = SequenceBooks(CommonBooks())
        self.windows = Windows(self.sequence, proposer, self.books, self.ledger, 1000)
        self.prefill = self.sequence.prefill_span(3)

    def start(self) -> Fixture:
        self.windows.commit(self.prefill, (Sample(0, 2, 10),))
        return self

    def send(self, rows: int) -> Span:
        self.windows.look_ahead(rows)
        span = self.windows.next_span(rows)
        assert span is not None
        return span

    def back(self, span: Span, *tokens: int) -> tuple[int, ...]:
        """The span comes back with these samples; which were committed."""
        self.ledger.returned(span)
        samples = tuple(Sample(0, row, token) for row, token in enumerate(tokens))
        return tuple(sample.token for sample in self.windows.commit(span, samples))

    @property
    def answer(self) -> tuple[int, ...]:
        return tuple(self.sequence.tokens[3:])


def test_without_drafts_a_window_is_a_decode_row() -> None:
    fixture = Fixture(NoProposer()).start()
    span = fixture.send(8)
    assert (span.phase, span.start, span.tokens, span.sample_rows) == (Phase.DECODE, 3, (10,), (0,))
    assert fixture.windows.next_span(8) is None
    assert fixture.back(span, 11) == (11,)
    assert fixture.windows.decodable and fixture.sequence.computed == 4


def test_windows_cut_the_stream_into_ranges_that_do_not_overlap() -> None:
    fixture = Fixture(Scripted({4: ANSWER[1:]})).start()
    spans = [fixture.send(3) for _ in range(3)]
    assert [(span.start, span.tokens) for span in spans] == [
        (3, (10, 11, 12)),
        (6, (13, 14, 15)),  # its first token is what the window before will give for free
        (9, (16, 17, 18)),
    ]
    assert [span.sample_rows for span in spans] == [(0, 1, 2)] * 3
    assert fixture.windows.in_flight == 3 and fixture.windows.sent_drafts == 8
    assert fixture.back(spans[0], 11, 12, 13) == (11, 12, 13)
    assert fixture.windows.sent_drafts == 5
    assert fixture.sequence.epoch == 0


def test_a_free_token_is_the_first_row_of_the_next_window() -> None:
    fixture = Fixture(Scripted({4: ANSWER[1:3], 7: ANSWER[4:]})).start()
    fixture.back(fixture.send(3), 11, 12, 13)
    span = fixture.send(3)
    assert (span.start, span.tokens) == (6, (13, 14, 15))


@pytest.mark.parametrize(
    ("samples", "committed"),
    [((99, 12, 13), (99,)), ((11, 99, 13), (11, 99)), ((11, 12, 99), (11, 12, 99))],
    ids=["first row", "inside", "against the next window"],
)
def test_the_first_difference_cuts_the_stream(samples: tuple[int, ...], committed: tuple[int, ...]) -> None:
    fixture = Fixture(Scripted({4: ANSWER[1:]})).start()
    first, second = fixture.send(3), fixture.send(3)
    assert fixture.back(first, *samples) == committed
    sequence = fixture.sequence
    assert sequence.epoch == 1 and second.epoch == 0
    assert fixture.windows.decodable and fixture.windows.in_flight == 0
    assert sequence.computed == sequence.dispatched == 3 + len(committed)
    refill = fixture.send(3)  # at once, before the void window is back
    assert (refill.start, refill.epoch, refill.tokens[0]) == (3 + len(committed), 1, committed[-1])
    assert (fixture.ledger.live_rows, fixture.ledger.void_rows) == (len(refill.tokens), 3)
    fixture.ledger.returned(second)
    assert (fixture.ledger.live_rows, fixture.ledger.void_rows) == (len(refill.tokens), 0)


def test_a_wrong_draft_that_was_never_sent_voids_nothing() -> None:
    fixture = Fixture(Scripted({4: ANSWER[1:]})).start()
    fixture.windows.look_ahead(4)
    span = fixture.windows.next_span(1)
    assert span is not None and span.tokens == (10,)
    fixture.back(span, 99)
    assert fixture.sequence.epoch == 0
    assert fixture.windows.chances == []


def test_drafts_that_were_not_sent_are_judged_too() -> None:
    fixture = Fixture(Scripted({4: ANSWER[1:]})).start()
    fixture.windows.look_ahead(4)
    span = fixture.windows.next_span(1)
    assert span is not None
    fixture.back(span, 11)
    known = fixture.ledger.statistics(0.0)
    assert (known.judged_by_proposer, known.accepted_by_proposer) == ({"scripted": 1}, {"scripted": 1})
    assert (known.draft_tokens, known.accepted_tokens) == (0, 0)


def test_an_end_token_in_the_middle_of_a_window_ends_the_sequence() -> None:
    fixture = Fixture(Scripted({4: ANSWER[1:]}), end_tokens=frozenset({77})).start()
    first, second = fixture.send(3), fixture.send(3)
    assert fixture.back(first, 11, 77, 13) == (11, 77)
    assert fixture.sequence.ended and fixture.sequence.stopped
    assert fixture.sequence.epoch > second.epoch
    assert fixture.windows.next_span(3) is None


def test_an_end_token_is_never_sent_as_a_draft() -> None:
    fixture = Fixture(Scripted({4: ANSWER[1:]}), end_tokens=frozenset({13})).start()
    span = fixture.send(8)
    assert span.tokens == (10, 11, 12)
    assert fixture.back(span, 11, 12, 13) == (11, 12, 13)
    assert fixture.sequence.ended


@pytest.mark.parametrize("bad", [-1, 1000])
def test_what_is_no_token_is_never_sent(bad: int) -> None:
    fixture = Fixture(Scripted({4: (11, bad, 13)})).start()
    assert fixture.send(8).tokens == (10, 11)


def test_no_row_is_sent_that_could_not_matter() -> None:
    fixture = Fixture(Scripted({4: ANSWER[1:]}), max_tokens=5).start()
    spans = [fixture.send(3)]
    second = fixture.windows.next_span(3)
    assert second is not None
    spans.append(second)
    # Five tokens may follow; the first is there, and the last one's row gives nothing.
    assert [token for span in spans for token in span.tokens] == [10, 11, 12, 13]
    assert fixture.windows.next_span(3) is None
    fixture.back(spans[0], 11, 12, 13)
    assert fixture.back(spans[1], 14) == (14,)
    assert fixture.sequence.ended and fixture.answer == ANSWER[:5]


def test_the_token_limit_ends_a_window_early() -> None:
    fixture = Fixture(Scripted({4: (11, 12, 13)}), max_tokens=12).start()
    span = fixture.send(4)
    fixture.sequence.token_limit = 6  # the ring formed again with a smaller context
    assert fixture.back(span, 11, 12, 13, 14) == (11, 12)
    assert fixture.sequence.ended


def test_drafts_may_run_ahead_of_the_prompts_own_sample() -> None:
    fixture = Fixture(Scripted({3: ANSWER}))
    assert not fixture.windows.decodable
    span = fixture.send(3)
    assert (span.start, span.tokens, span.phase) == (3, (10, 11, 12), Phase.VERIFY)
    fixture.windows.commit(fixture.prefill, (Sample(0, 2, 10),))
    assert fixture.back(span, 11, 12, 13) == (11, 12, 13)
    wrong = Fixture(Scripted({3: ANSWER}))
    ahead = wrong.send(3)
    wrong.windows.commit(wrong.prefill, (Sample(0, 2, 50),))
    assert wrong.sequence.epoch > ahead.epoch and wrong.windows.decodable
    assert wrong.send(3).tokens[0] == 50


def test_nothing_runs_ahead_of_a_prompt_that_is_not_sent() -> None:
    request = SequenceRequest(prompt=PROMPT, max_tokens=5)
    sequence = Sequence(1, request, 0.0, 100)
    proposer = Scripted({3: ANSWER})
    windows = Windows(sequence, proposer, SequenceBooks(CommonBooks()), Ledger(), 1000)
    windows.look_ahead(4)
    for rows in (1, 1):
        assert windows.available == 0 and windows.next_span(4) is None
        sequence.prefill_span(rows)
    assert windows.available == 0
    sequence.prefill_span(1)
    assert windows.available == 4


def test_a_rewound_sequence_forgets_its_drafts_and_goes_on_from_its_tokens() -> None:
    fixture = Fixture(Scripted({4: ANSWER[1:], 5: ANSWER[2:]})).start()
    fixture.back(fixture.send(1), 11)
    fixture.send(3)
    fixture.sequence.rewind()
    fixture.windows.forget()
    assert fixture.windows.in_flight == 0 and fixture.ledger.live_rows == 0
    assert fixture.windows.next_span(3) is None
    replay = fixture.sequence.prefill_span(fixture.sequence.prefill_remaining)
    assert replay.phase is Phase.RECOMPUTE and fixture.windows.decodable
    assert fixture.send(2).tokens == (11, 12)
    assert fixture.windows.commit(replay, ()) == ()
    assert fixture.sequence.computed == replay.end


def test_a_proposer_sees_every_committed_token_once_and_is_asked_again_only_after_news() -> None:
    proposer = Scripted({4: ANSWER[1:3]})
    fixture = Fixture(proposer).start()
    span = fixture.send(8)
    asked = proposer.asked
    for _ in range(3):
        fixture.windows.look_ahead(8)
    assert proposer.asked == asked and not fixture.windows.open_ended
    proposer.wake()
    fixture.windows.look_ahead(8)
    assert proposer.asked == asked + 1
    fixture.back(span, 11, 12, 13)
    fixture.windows.look_ahead(8)
    assert proposer.observed == [1, 2, 3, 10, 11, 12, 13]


def test_the_heads_drafts_hang_on_the_last_committed_token() -> None:
    fixture = Fixture(Mtp()).start()
    fixture.windows.head_wanted = True
    span = fixture.send(4)
    assert span.draft is DraftRequest.ALWAYS
    samples = (Sample(0, 0, 11, None, (12, 13, 14)),)
    fixture.ledger.returned(span)
    fixture.windows.commit(span, samples)
    span = fixture.send(4)
    assert span.tokens == (11, 12, 13, 14)
    # It differs in the second row: what the head drafted for the others is not taken.
    drafts = {0: (), 1: (60, 61), 2: (70,), 3: (80,)}
    answers = (12, 50, 51, 52)
    fixture.windows.commit(span, tuple(Sample(0, row, answers[row], None, drafts[row]) for row in range(4)))
    assert fixture.send(4).tokens == (50, 60, 61)


def test_the_head_is_asked_only_where_its_drafts_can_be_used() -> None:
    # Nothing can diverge in a single row: the head keeps in step, and drafts nothing.
    for follows, request in ((True, DraftRequest.ON_DIVERGENCE), (False, DraftRequest.NEVER)):
        fixture = Fixture(Mtp()).start()
        fixture.windows.head_follows = follows
        assert fixture.send(1).draft is request
    plain = Fixture(Scripted({4: ANSWER[1:]})).start()
    plain.windows.head_wanted = True
    assert plain.send(2).draft is DraftRequest.NEVER


def test_the_head_drafts_behind_the_prompt_where_that_saves_a_trip() -> None:
    fixture = Fixture(Mtp())
    requests = []
    for early in (False, True):
        fixture.windows.drafts_early = early
        requests.append(fixture.windows.draft_behind_prompt)
    assert requests == [DraftRequest.NEVER, DraftRequest.ALWAYS]
    sequence = Sequence(6, SequenceRequest(prompt=PROMPT, max_tokens=9), 0.0, 100)
    sequence.tail = fixture.windows
    assert sequence.prefill_span(len(PROMPT) - 1).draft is DraftRequest.NEVER
    assert sequence.prefill_span(1).draft is DraftRequest.ALWAYS
    plain = Fixture(Scripted({4: ANSWER[1:]}))
    plain.windows.drafts_early = True
    assert plain.windows.draft_behind_prompt is DraftRequest.NEVER


def test_in_the_middle_of_a_full_pipe_the_head_drafts_only_at_a_divergence() -> None:
    proposer = Scripted({4: list(range(11, 60))})
    proposer.uses_head = True
    fixture = Fixture(proposer, max_tokens=60).start()
    fixture.windows.head_wanted = True
    fixture.windows.look_ahead(24)
    spans = [fixture.windows.next_span(8) for _ in range(4)]
    requests = [span.draft for span in spans if span is not None]
    assert requests[:2] == [DraftRequest.ON_DIVERGENCE] * 2
    assert requests[-1] is DraftRequest.ALWAYS


@pytest.mark.parametrize(("chance", "asked"), [(0.95, DraftRequest.ON_DIVERGENCE), (0.5, DraftRequest.ALWAYS)])
def test_where_a_sure_copy_goes_on_the_head_is_not_asked_though_no_draft_waits(
    chance: float, asked: DraftRequest
) -> None:
    proposer = Scripted({4: list(range(11, 60))})
    proposer.uses_head = True
    fixture = Fixture(proposer, max_tokens=60).start()
    fixture.windows.head_wanted = True
    fixture.windows.look_ahead(12)
    fixture.windows._chances[:] = [chance] * len(fixture.windows.chances)
    span = fixture.windows.next_span(fixture.windows.available)
    assert span is not None and span.draft is asked


def test_figures_tell_useful_rows_from_stale_ones() -> None:
    fixture = Fixture(Scripted({4: ANSWER[1:], 6: ()})).start()
    first, second = fixture.send(4), fixture.send(4)
    fixture.back(first, 11, 99, 13, 14)
    fixture.ledger.returned(second)
    known = fixture.ledger.statistics(1.0)
    assert (known.useful_rows, known.stale_rows) == (2, 6)
    assert (known.windows, known.stale_windows, known.committed_tokens) == (1, 1, 2)
    assert (known.drafts, known.draft_tokens, known.accepted_tokens) == (2, 7, 1)
    assert known.accepted_by_position[:2] == (1, 0)
    assert known.drafted_by_position[:4] == (2, 2, 2, 1)
    assert known.tokens_per_traversal == 2.0
    assert known.rows_in_flight == 0
