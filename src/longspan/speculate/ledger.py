"""What is in flight, and what became of all that was: the figures of speculation over all sequences."""

from __future__ import annotations

import msgspec

from longspan.schedule.span import Span

DEEPEST = 32
"""Windows of one sequence in flight that are told apart."""

POSITIONS = 16
"""Places in a window whose acceptance is told apart; later ones count as the last."""


class SpeculationStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Totals since the start, and time averages. A window is any decode or verify span.

    windows: that came back and counted. stale_windows: that came back after their epoch had ended.
    committed_tokens: by the windows that counted. useful_rows: whose sample was committed; stale_rows: all others.
    drafts: windows sent with drafts. draft_tokens: sent. accepted_tokens: of those, come true.
    accepted_by_position, drafted_by_position: by place in the window, the first draft of a window at index 0.
    windows_by_rows: windows sent, by their rows from 1; the last one counts all wider ones.
    judged_by_proposer, accepted_by_proposer: draft tokens by book, also of drafts that were never sent.
    useful_in_flight, stale_in_flight: rows in flight, averaged over the time in which anything was; a row is stale
        once its epoch has ended. seconds: that time. seconds_by_depth: sequence-seconds with so many live windows
        in flight, from 1. rows_in_flight: now.
    fits: (a1, rho) of a1 * rho^(rank - 1), by book. trip_seconds, stage_seconds: of a plain iteration, as it is
        predicted at present, around the ring and on the slowest stage; 0: not known. head_wanted: whether drafts of
        the MTP head are asked for.
    """

    windows: int
    stale_windows: int
    committed_tokens: int
    useful_rows: int
    stale_rows: int
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    accepted_by_position: tuple[int, ...]
    drafted_by_position: tuple[int, ...]
    windows_by_rows: tuple[int, ...]
    judged_by_proposer: dict[str, int]
    accepted_by_proposer: dict[str, int]
    useful_in_flight: float
    stale_in_flight: float
    seconds: float
    seconds_by_depth: tuple[float, ...]
    rows_in_flight: int
    fits: dict[str, tuple[float, float]] = {}
    trip_seconds: float = 0.0
    stage_seconds: float = 0.0
    head_wanted: bool = False

    @property
    def tokens_per_traversal(self) -> float:
        """Committed tokens for each window that counted; 0 before the first."""
        return self.committed_tokens / self.windows if self.windows else 0.0


class _Flight:
    """One sequence's windows in flight: `rows` and `windows` of the running epoch, `spans` of any."""

    __slots__ = ("epoch", "rows", "spans", "windows")

    def __init__(self) -> None:
        self.epoch = 0
        self.rows = 0
        self.windows = 0
        self.spans = 0


class Ledger:
    """Counts windows from their sending to their return.

    live_rows: in flight in a running epoch. void_rows: in flight, but their epoch has ended.
    """

    def __init__(self) -> None:
        self.live_rows = 0
        self.void_rows = 0
        self._flights: dict[int, _Flight] = {}
        self._at_depth = [0] * (DEEPEST + 1)
        self._windows = self._stale_windows = self._committed = 0
        self._useful = self._stale = 0
        self._drafts = self._draft_tokens = self._accepted = 0
        self._accepted_by_position = [0] * POSITIONS
        self._drafted_by_position = [0] * POSITIONS
        self._windows_by_rows = [0] * POSITIONS
        self._judged: dict[str, int] = {}
        self._accepted_of: dict[str, int] = {}
        self._now = 0.0
        self._live_seconds = self._void_seconds = self._seconds = 0.0
        self._depth_seconds = [0.0] * (DEEPEST + 1)

    @property
    def rows(self) -> int:
        """Decode and verify rows in flight."""
        return self.live_rows + self.void_rows

    @property
    def outcome(self) -> tuple[int, int]:
        """Rows that came to an end since the start: useful ones, and stale ones."""
        return self._useful, self._stale

    def advance(self, now: float) -> None:
        """Account for the time since the last call; call it before anything changes at `now`."""
        passed = now - self._now
        self._now = now
        if passed <= 0 or not self.live_rows + self.void_rows:
            return
        self._seconds += passed
        self._live_seconds += passed * self.live_rows
        self._void_seconds += passed * self.void_rows
        for depth, count in enumerate(self._at_depth):
            if count:
                self._depth_seconds[depth] += passed * count

    def sent(self, span: Span, drafted: int) -> None:
        """A window goes out, with `drafted` draft tokens."""
        rows = len(span.tokens)
        self.live_rows += rows
        self._windows_by_rows[min(rows, POSITIONS) - 1] += 1
        flight = self._flights.get(span.sequence)
        if flight is None:
            flight = self._flights[span.sequence] = _Flight()
        flight.epoch = span.epoch
        flight.rows += rows
        flight.spans += 1
        self._deepen(flight, flight.windows + 1)
        if drafted:
            self._drafts += 1
            self._draft_tokens += drafted
            first = rows - drafted  # 1 where the window begins with a committed token
            for place in range(rows - first):
                self._drafted_by_position[min(place, POSITIONS - 1)] += 1

    def returned(self, span: Span) -> None:
        """A window came back, whether anybody waits for it or not."""
        rows = len(span.tokens)
        flight = self._flights.get(span.sequence)
        if flight is None:
            return
        flight.spans -= 1
        if span.epoch == flight.epoch:
            self.live_rows -= rows
            flight.rows -= rows
            self._deepen(flight, flight.windows - 1)
        else:
            self.void_rows -= rows
            self._stale_windows += 1
            self._stale += rows
        if not flight.spans:
            del self._flights[span.sequence]

    def voided(self, sequence: int, epoch: int) -> None:
        """What is in flight of the sequence is void; its next window, if there is one, has `epoch`."""
        flight = self._flights.get(sequence)
        if flight is not None:
            self.live_rows -= flight.rows
            self.void_rows += flight.rows
            flight.rows = 0
            # A sequence that is over keeps its epoch; what is in flight of it is void all the same.
            flight.epoch = max(epoch, flight.epoch + 1)
            self._deepen(flight, 0)

    @property
    def committed_tokens(self) -> int:
        """Tokens of the windows that counted."""
        return self._committed

    def committed(self, rows: int, tokens: int, accepted: int) -> None:
        """A window of `rows` rows counted: `tokens` committed, by its own drafts and others; the rest was stale."""
        self._windows += 1
        self._committed += tokens
        self._useful += tokens
        self._stale += rows - tokens
        self._accepted += accepted
        for place in range(accepted):
            self._accepted_by_position[min(place, POSITIONS - 1)] += 1

    def judged(self, book: str, accepted: bool) -> None:
        """The target decided on a draft token of this book, sent or not."""
        self._judged[book] = self._judged.get(book, 0) + 1
        if accepted:
            self._accepted_of[book] = self._accepted_of.get(book, 0) + 1

    def lost(self) -> None:
        """The ring is gone, and all that was in flight."""
        self._stale += self.rows
        self.live_rows = self.void_rows = 0
        self._flights.clear()
        self._at_depth = [0] * (DEEPEST + 1)

    def statistics(self, now: float) -> SpeculationStatistics:
        """The figures until now."""
        self.advance(now)
        seconds = self._seconds
        return SpeculationStatistics(
            windows=self._windows,
            stale_windows=self._stale_windows,
            committed_tokens=self._committed,
            useful_rows=self._useful,
            stale_rows=self._stale,
            drafts=self._drafts,
            draft_tokens=self._draft_tokens,
            accepted_tokens=self._accepted,
            accepted_by_position=tuple(self._accepted_by_position),
            drafted_by_position=tuple(self._drafted_by_position),
            windows_by_rows=tuple(self._windows_by_rows),
            judged_by_proposer=dict(self._judged),
            accepted_by_proposer=dict(self._accepted_of),
            useful_in_flight=self._live_seconds / seconds if seconds else 0.0,
            stale_in_flight=self._void_seconds / seconds if seconds else 0.0,
            seconds=seconds,
            seconds_by_depth=tuple(self._depth_seconds[1:]),
            rows_in_flight=self.rows,
        )

    def _deepen(self, flight: _Flight, windows: int) -> None:
        self._at_depth[min(flight.windows, DEEPEST)] -= 1
        self._at_depth[min(windows, DEEPEST)] += 1
        self._at_depth[0] = 0
        flight.windows = windows
