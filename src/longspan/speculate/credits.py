"""The pool of time on the slowest stage that may be in flight, shared by all sequences."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from longspan.speculate.depth import Conditions

LEAST_GAP = 0.25
"""Share of an iteration for which the slowest stage must be expected to wait before one more is sent on a guess."""

APART = 0.5
"""Tokens that running ahead must bring beside others: whoever does leaves its neighbours (see `schedule.lanes`),
and to go with them again waits for half a trip, in which half a token would have come without any drafts."""


class Credits:
    """How many rows may be sent on a guess.

    The ring is filled first by those who need no guess: every sequence's next row goes out without asking, with its
    drafts. All that is in flight counts, void rows too. So deeper windows get what the independent requests leave
    of the slowest stage's time in one trip, and as those become more, nothing. More in flight would only wait in
    front of that stage, and a refill would wait behind it. Without conditions there is no limit.
    """

    def __init__(self) -> None:
        self.conditions: Conditions | None = None
        self._in_flight: deque[float] = deque()
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """What the iterations in flight take on the slowest stage."""
        return self._seconds

    def take(self, rows: int) -> None:
        """An iteration with so many decode and verify rows goes out."""
        seconds = self.conditions.cost(rows) if self.conditions is not None else 0.0
        self._in_flight.append(seconds)
        self._seconds += seconds

    def give_back(self) -> None:
        """The oldest iteration is back."""
        if self._in_flight:
            self._in_flight.popleft()
            self._seconds = sum(self._in_flight)

    def clear(self) -> None:
        """Nothing is in flight any more."""
        self._in_flight.clear()
        self._seconds = 0.0

    def allow(self, rows: int) -> bool:
        """Whether the ring has time for an iteration of so many rows on a guess."""
        if self.conditions is None:
            return True
        seconds = self.conditions.cost(rows)
        usual = self._seconds / len(self._in_flight) if self._in_flight else 0.0
        trip = self.conditions.link + self.conditions.spread * max(seconds, usual)
        return self._seconds + LEAST_GAP * seconds <= trip

    def worth(self, survival: Sequence[float], rate: float) -> bool:
        """Whether a window on a guess is worth its time on the slowest stage.

        survival: of each of its rows. rate: tokens a second of all sequences. The time is taken from others as far
        as sequences that need no guess keep the stage busy, and from the sequence itself when the guess was wrong
        by then: its refill waits half of it.
        """
        if self.conditions is None:
            return True
        conditions, rows = self.conditions, len(survival)
        busy = conditions.turn(1) / conditions.trip(1)
        price = max(busy, (1 - survival[0]) / 2)
        apart = APART if conditions.sequences > 1 else 0.0
        return sum(survival) >= price * rate * conditions.cost(rows) + apart
