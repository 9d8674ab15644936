"""Speculation over all sequences: makes their windows and deals the rows of an iteration to them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import msgspec

from longspan.errors import UsageError
from longspan.schedule.geometry import Geometry
from longspan.schedule.sequence import Sequence as Stream
from longspan.schedule.sequence import Status
from longspan.schedule.span import Span, StageTiming
from longspan.speculate.acceptance import CommonBooks, SequenceBooks
from longspan.speculate.alignment import Wish, aligned
from longspan.speculate.composite import ProposerMaker
from longspan.speculate.depth import PLAIN, Shape, survival_of
from longspan.speculate.ledger import Ledger, SpeculationStatistics
from longspan.speculate.pace import AutoPace, Cost, FixedPace, Pace
from longspan.speculate.windows import Windows

MAX_WIDTH = 64
MAX_DEPTH = 32


class SpeculationPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Which drafts, and how many.

    proposer: by name (see `proposers.PROPOSERS`). width, depth: rows of a window and windows of a sequence in
    flight; both given, they are fixed, both None, they are chosen from what is measured.
    """

    proposer: str = "auto"
    width: int | None = None
    depth: int | None = None

    def __post_init__(self) -> None:
        if (self.width is None) != (self.depth is None):
            raise UsageError("speculation needs both a width and a depth, or neither")
        for name, most in (("width", MAX_WIDTH), ("depth", MAX_DEPTH)):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise UsageError(f"speculation {name} is {value}; it must be within 1 and {most}")


class Speculation:
    """One for each ring. The planner calls it; times are its `now`.

    ledger: what is in flight and what became of it. books: acceptance over all sequences. pace: width and depth.
    """

    def __init__(
        self,
        policy: SpeculationPolicy,
        make_proposer: ProposerMaker,
        *,
        rows: int,
        vocabulary: int,
        cost: Cost | None = None,
    ) -> None:
        """rows: most rows of an iteration with a decode row. vocabulary: its size. cost: see `pace.AutoPace`."""
        self._make_proposer = make_proposer
        self._vocabulary = vocabulary
        self._committed = 0
        self._alive: list[Windows] = []
        self.ledger = Ledger()
        self.books = CommonBooks()
        self.pace: Pace
        if policy.width is not None and policy.depth is not None:
            self.pace = FixedPace(policy.width, policy.depth)
        else:
            self.pace = AutoPace(self.books, rows, cost)

    @property
    def in_step(self) -> bool:
        """Whether neighbours shall wait for each other: who sends drafts does so only where stages are busy.

        Without drafts all come back as they left, and wait once; with drafts again and again, on a long ring for
        most of a trip.
        """
        conditions = self.pace.conditions
        return self.pace.plain or (conditions is not None and 2 * conditions.turn(1) > conditions.trip(1))

    def windows(self, sequence: Stream) -> Windows:
        """The windows of a new sequence."""
        books = SequenceBooks(self.books)
        windows = Windows(sequence, self._make_proposer(books), books, self.ledger, self._vocabulary)
        self._alive = [known for known in self._alive if known.sequence.status is not Status.FINISHED]
        self._alive.append(windows)
        early = self.pace.drafts_early(len(self._alive))
        for known in self._alive:
            known.drafts_early = early
        return windows

    def refresh(self, sequences: int, group: int, history: float, now: float) -> None:
        """Before rows are dealt: so many sequences decode, `group` in one iteration, behind so much history."""
        self.pace.refresh(sequences, group, history, now)

    def deal(
        self, ready: Sequence[Windows], running: Iterable[Windows], rows: int, group: int, now: float
    ) -> list[Span]:
        """Spans of the next iteration, in no particular order.

        ready: sequences whose next row goes out in any case. running: all others that decode; windows on a guess
        are added for them while fewer than `group` sequences take part. rows: most rows of the iteration, at least
        one for each of `ready`.
        """
        self.ledger.advance(now)
        shares, expected = self._drafts(ready, rows - len(ready), now)
        spans = [
            span
            for windows, drafts, gain in zip(ready, shares, expected, strict=True)
            if (span := windows.next_span(1 + drafts, gain)) is not None
        ]
        taken = len(ready) + sum(shares)
        if len(ready) < group:
            spans += self._deeper(running, taken, rows, group - len(ready), now)
        if spans:
            sent = sum([len(span.tokens) for span in spans])
            self.pace.credits.take(sent)
            self.pace.sent(len(spans), sent)
        return spans

    def returned(self, spans: Iterable[Span], now: float) -> None:
        """An iteration is back, before its results are taken: its decode and verify spans, void ones too."""
        self.ledger.advance(now)
        spans = list(spans)
        exact = [span for span in spans if span.phase.is_exact]
        committed = self.ledger.committed_tokens
        self.pace.committed(committed - self._committed, alone=len(exact) == len(spans))
        self._committed = committed
        for span in exact:
            self.ledger.returned(span)
        if exact:
            self.pace.credits.give_back()

    def measured(self, trip: float, timings: Sequence[StageTiming], geometry: Geometry) -> None:
        """An iteration without prefill rows came back `trip` seconds after it was planned."""
        self.pace.measured(trip, timings, geometry.exact_rows, geometry.sub_batches)

    def lost(self) -> None:
        """The ring is gone, and all that was in flight."""
        self.ledger.lost()
        self.pace.credits.clear()

    def statistics(self, now: float) -> SpeculationStatistics:
        """Figures until now."""
        known = self.ledger.statistics(now)
        conditions = self.pace.conditions
        return msgspec.structs.replace(
            known,
            fits=self.books.fits(),
            trip_seconds=conditions.trip(1) if conditions is not None else 0.0,
            stage_seconds=conditions.iteration(1) if conditions is not None else 0.0,
            head_wanted=self.pace.head_wanted,
        )

    def _shape(self, windows: Windows, now: float) -> Shape:
        asks = self.pace.asks(now)
        windows.head_wanted = asks and self.pace.head_wanted
        windows.head_follows = self.pace.head_follows
        shape = PLAIN
        if asks:
            windows.look_ahead(self.pace.look_ahead)
            shape = self.pace.shape(windows, now)
        windows.width, windows.depth = shape.width, shape.depth
        return shape

    def _drafts(self, ready: Sequence[Windows], rows: int, now: float) -> tuple[Sequence[int], Sequence[float]]:
        """How many drafts each sends with its next row, at most `rows` in all, and what is expected of them.

        Nothing is expected of one sequence alone: there what drafts bring need not be compared.
        """
        widths = [self._shape(windows, now).width for windows in ready]
        widest = max(widths, default=1)
        if widest == 1:
            return [0] * len(ready), [0.0] * len(ready)
        conditions = self.pace.conditions
        crowd = conditions is not None and conditions.sequences > 1
        wishes: list[Wish] = []
        factors: list[float] = []
        for windows, width in zip(ready, widths, strict=True):
            most = max(1, windows.available)
            survival = survival_of(windows.chances, min(widest, most) - 1)[1:]
            factor = min(1.0, self.books.gains(windows.next_book).factor) if crowd else 1.0
            factors.append(factor)
            if factor < 1:
                survival = [factor * chance for chance in survival]
            wishes.append(Wish(windows.sequence.slot or 0, survival, min(width, most) - 1))
        counts = [wish.drafts for wish in wishes] if conditions is None else aligned(wishes, conditions)
        shares = _shares([wish.survival[:count] for wish, count in zip(wishes, counts, strict=True)], rows)
        if not crowd:
            return shares, [0.0] * len(ready)
        expected = [
            sum(wish.survival[:share]) / factor for wish, share, factor in zip(wishes, shares, factors, strict=True)
        ]
        return shares, expected

    def _deeper(self, running: Iterable[Windows], taken: int, rows: int, most: int, now: float) -> list[Span]:
        """At most `most` windows for sequences that have some in flight already.

        Those with the fewest drafts on their way come first, so that nobody fills the ring alone beside others.
        taken: rows of the iteration that are dealt already; rows: most that it may have.
        """
        if taken >= rows or not self.pace.credits.allow(taken + 1):
            return []
        candidates: list[tuple[int, float, int, Windows, int]] = []
        for windows in running:
            shape = self._shape(windows, now)
            if windows.in_flight >= shape.depth:
                continue
            count = min(shape.width, windows.available)
            if count <= 0 or (windows.may_grow and 2 * count < shape.width):
                continue
            sent = windows.sent_drafts
            survival = survival_of(windows.chances, sent + count)[sent + 1 :]
            if self.pace.credits.worth(survival, shape.rate):
                candidates.append((sent, -survival[0], windows.sequence.id, windows, count))
        candidates.sort(key=lambda candidate: candidate[:3])
        spans: list[Span] = []
        for _, _, _, windows, wanted in candidates[:most]:
            count = min(wanted, rows - taken)
            if count <= 0 or not self.pace.credits.allow(taken + count):
                break
            span = windows.next_span(count)
            if span is not None:
                spans.append(span)
                taken += count
        return spans


def _shares(wishes: Sequence[Sequence[float]], rows: int) -> list[int]:
    """How many drafts of each wish are granted: the likeliest of all, at most `rows`."""
    wanted = [len(wish) for wish in wishes]
    if sum(wanted) <= rows:
        return wanted
    granted = [0] * len(wishes)
    heap = [(-wish[0], index) for index, wish in enumerate(wishes) if wish]
    heapq.heapify(heap)
    while heap and rows > 0:
        _, index = heap[0]
        granted[index] += 1
        rows -= 1
        if granted[index] < wanted[index]:
            heapq.heapreplace(heap, (-wishes[index][granted[index]], index))
        else:
            heapq.heappop(heap)
    return granted
