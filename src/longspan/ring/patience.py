"""How long a ring may be silent before it counts as lost."""

from __future__ import annotations

import collections

STUCK_SECONDS = 180.0
"""Longest wait for a result, also before anything is known of how long iterations take."""

SLACK = 8.0
"""An iteration may take so many times what the slowest one of its size has taken."""

LEARNT = 8
"""Results from which on the time that iterations took is believed."""


class Patience:
    """Predicts when the next result is due at the latest, from the iterations that came back.

    What is measured is the whole way of an iteration, with its waiting, so that a ring that is busier or farther
    away is waited for longer. silence: seconds that are granted besides. Times are seconds of one monotonic clock.
    """

    def __init__(self, silence: float) -> None:
        self._silence = silence
        self._under_way: collections.deque[tuple[float, int]] = collections.deque()
        self._rows = 0
        self._results = 0
        self._longest = 0.0
        self._longest_row = 0.0
        self._moved = 0.0

    def sent(self, rows: int, now: float) -> None:
        """An iteration of so many rows is on its way."""
        if not self._under_way:
            self._moved = now
        self._under_way.append((now, rows))
        self._rows += rows

    def returned(self, now: float) -> None:
        """The result of the oldest iteration has come back."""
        self._moved = now
        if not self._under_way:
            return
        sent, rows = self._under_way.popleft()
        self._rows -= rows
        self._results += 1
        self._longest = max(self._longest, now - sent)
        self._longest_row = max(self._longest_row, (now - sent) / max(1, rows))

    def limit(self) -> float:
        """Seconds that may pass between two results while something is under way."""
        if self._results < LEARNT:
            return STUCK_SECONDS
        expected = max(self._longest, self._longest_row * self._rows)
        return min(STUCK_SECONDS, self._silence + SLACK * expected)

    def overdue(self, now: float) -> bool:
        """Whether nothing has come back for longer than that."""
        return bool(self._under_way) and now - self._moved > self.limit()
