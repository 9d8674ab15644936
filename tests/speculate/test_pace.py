from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from longspan.schedule.request import SequenceRequest
from longspan.schedule.sequence import Sequence
from longspan.schedule.span import Sample, StageTiming
from longspan.speculate.acceptance import CommonBooks, SequenceBooks
from longspan.speculate.depth import PLAIN
from longspan.speculate.ledger import Ledger
from longspan.speculate.pace import AutoPace, FixedPace
from longspan.speculate.windows import Windows
from tests.speculate.proposers import Foreseeing

ANSWER = [index % 250 for index in range(400)]


def cost(rows: int, history: float) -> float:
    return 0.003 + 0.0012 * rows + 1e-6 * history


def timings(stages: int = 2, seconds: float = 0.0042) -> list[StageTiming]:
    """Stages that start at once, each on a clock of its own."""
    return [StageTiming(stage, 100.0 * stage, 100.0 * stage, 100.0 * stage + seconds) for stage in range(stages)]


def stream(chance: float, books: CommonBooks) -> Windows:
    """Windows after the first token, with drafts that come true with this chance."""
    sequence = Sequence(0, SequenceRequest(prompt=(1, 2), max_tokens=390), 0.0, 1000)
    proposer = Foreseeing([1, 2, *ANSWER], chance)
    windows = Windows(sequence, proposer, SequenceBooks(books), Ledger(), 256)
    windows.commit(sequence.prefill_span(2), (Sample(0, 1, ANSWER[0]),))
    windows.look_ahead(32)
    return windows


def believed(books: CommonBooks) -> Windows:
    """Windows whose drafts came true so often that they are trusted."""
    windows = stream(1.0, books)
    for count in range(300):
        windows._books.record("foreseeing", 1 + count % 40, True)
    windows.forget()
    windows.look_ahead(32)
    return windows


def measured(pace: AutoPace, link: float) -> None:
    for _ in range(60):
        pace.measured(link + 2 * 0.0042, timings(), 1, 1)


def test_fixed_is_fixed() -> None:
    pace = FixedPace(6, 3)
    pace.refresh(8, 4, 1000.0, 0.0)
    assert pace.shape(stream(0.0, CommonBooks()), 0.0)[:2] == (6, 3)
    assert pace.credits.allow(10_000)


def test_nothing_is_sent_ahead_before_anything_was_measured() -> None:
    pace = AutoPace(CommonBooks(), 63, cost)
    pace.refresh(1, 1, 10.0, 0.0)
    assert pace.shape(stream(1.0, CommonBooks()), 0.0) == PLAIN
    pace.measured(1.0, [], 1, 1)
    pace.refresh(1, 1, 10.0, 1.0)
    assert pace.conditions is None


def test_nothing_is_sent_ahead_while_the_cost_is_not_known() -> None:
    pace = AutoPace(CommonBooks(), 63, lambda rows, history: 0.0)
    measured(pace, 0.1)
    pace.refresh(1, 1, 10.0, 0.0)
    assert pace.conditions is None


def test_latency_is_what_a_trip_takes_outside_the_stages_and_their_queues() -> None:
    pace = AutoPace(CommonBooks(), 63, cost)
    waited = [StageTiming(0, 0.0, 0.01, 0.0142), StageTiming(1, 50.0, 50.02, 50.0242)]
    for _ in range(100):
        pace.measured(0.2 + 0.0142 + 0.0242, waited, 1, 1)
    pace.refresh(1, 1, 500.0, 0.0)
    assert pace.conditions is not None
    assert pace.conditions.link == pytest.approx(0.2)
    assert pace.conditions.spread == pytest.approx(2.0)
    assert pace.conditions.cost(3) == pytest.approx(cost(3, 500.0))
    assert pace.conditions.cost(14) == pytest.approx(cost(14, 500.0))


def test_the_same_drafts_go_deeper_where_the_ring_is_longer() -> None:
    books = CommonBooks()
    windows = believed(books)
    depths = []
    for link in (0.0, 0.02, 0.2):
        pace = AutoPace(books, 63, cost)
        measured(pace, link)
        pace.refresh(1, 1, 100.0, 0.0)
        depths.append(pace.shape(windows, 0.0).depth)
    assert depths[0] < depths[1] < depths[2]


def test_after_a_stop_drafts_are_tried_again_on_a_timer() -> None:
    books = CommonBooks()
    own = SequenceBooks(books)
    for _ in range(400):
        own.record("foreseeing", 1, False)
    windows = stream(0.0, books)
    pace = AutoPace(books, 63, cost)
    measured(pace, 0.0)
    sent = []
    for step in range(1200):
        now = step * 0.1
        pace.refresh(1, 1, 100.0, now)
        if pace.shape(windows, now).width > 1:
            sent.append(now)
    assert len(sent) >= 5
    gaps = [later - earlier for earlier, later in pairwise(sent)]
    assert gaps == sorted(gaps) and gaps[-1] == pytest.approx(16.0, abs=0.2)


def test_the_heads_drafts_are_asked_for_while_they_pay_and_tried_again_later() -> None:
    books = CommonBooks()
    own = SequenceBooks(books)
    pace = AutoPace(books, 63, cost)
    measured(pace, 0.05)
    wanted = []
    for _ in range(3000):
        own.record("mtp", 1, False)
    for step in range(400):
        pace.refresh(1, 1, 100.0, 1 + step * 0.3)
        wanted.append(pace.head_wanted)
    assert 0 < sum(wanted) < len(wanted) / 4


def test_a_head_that_costs_more_than_it_brings_is_switched_off() -> None:
    """Also where every iteration had drafts of the head, so that nothing shows what one takes without."""
    for seconds, wanted in ((0.05, False), (0.0005, True)):
        pace = AutoPace(CommonBooks(), 63)
        for _ in range(60):
            first, last = timings()
            drafting = msgspec.structs.replace(last, finished=last.finished + seconds, drafting=seconds)
            pace.measured(2 * 0.0042 + seconds, [first, drafting], 3, 1)
        assert pace.head.seconds == pytest.approx(seconds)
        pace.refresh(1, 1, 100.0, 0.0)
        assert pace.head_wanted is wanted


def test_what_the_head_takes_counts_as_often_as_it_drafts() -> None:
    pace = AutoPace(CommonBooks(), 63, cost)
    first, last = timings()
    drafting = msgspec.structs.replace(last, finished=last.finished + 0.002, drafting=0.002)
    for drafts, share in ((True, 1.0), (False, 0.0)):
        for _ in range(80):
            pace.measured(0.1 + 2 * 0.0042 + 0.002 * drafts, [first, drafting if drafts else last], 1, 1)
        pace.refresh(1, 1, 100.0, 1.0 if drafts else 2.0)
        assert pace.conditions is not None and pace.head_wanted
        assert pace.conditions.cost(1) == pytest.approx(cost(1, 100.0) + 0.002 * share, rel=0.02)
        assert pace.head.seconds == pytest.approx(0.002)


def test_some_wide_windows_are_narrower() -> None:
    """Else nothing would tell what a row costs from what an iteration does."""
    books = CommonBooks()
    windows = believed(books)
    pace = AutoPace(books, 63, cost)
    measured(pace, 0.2)
    pace.refresh(1, 1, 100.0, 0.0)
    widths = []
    for _ in range(4):
        width = pace.shape(windows, 0.0).width
        widths.append(width)
        windows.next_span(width)
    assert widths[1] == widths[2] > widths[3] >= 0.7 * widths[2]


def test_where_not_even_certain_drafts_pay_nobody_is_asked() -> None:
    pace = AutoPace(CommonBooks(), 63, cost)
    measured(pace, 0.0)
    pace.refresh(1, 1, 100.0, 0.0)
    assert pace.asks(0.0)
    pace.refresh(60, 60, 100.0, 0.1)
    windows = stream(1.0, CommonBooks())
    assert pace.shape(windows, 0.1) == PLAIN
    assert not pace.asks(0.2)
    # But now and then it is tried: what was measured may not be true any more.
    assert pace.asks(1.2) and pace.shape(windows, 1.2).width > 1
    assert not pace.asks(1.3)
