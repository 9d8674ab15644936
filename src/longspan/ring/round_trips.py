"""Whether the round trip of a live link is still the one that the ring formed with."""

from __future__ import annotations

import collections
import statistics
from typing import Literal

FIRST = 5
"""Pings whose median is what the ring formed with."""

RECENT = 15
"""Pings whose median is what the link has now: a jump of some seconds changes nothing."""

MARGIN_SECONDS = 0.02
"""Differences below this are no news, however many times the round trip they are."""


class RoundTrips:
    """Takes the round trips of one link, in seconds. Nothing ends by them; a person is told, once for each change.

    remark: what is to be said now; empty as long as nothing has changed.
    """

    def __init__(self) -> None:
        self._first: list[float] = []
        self._recent: collections.deque[float] = collections.deque(maxlen=RECENT)
        self._state: Literal["usual", "slower", "faster"] = "usual"
        self.remark = ""

    def note(self, seconds: float) -> bool:
        """One more; whether `remark` has changed by it."""
        if len(self._first) < FIRST:
            self._first.append(seconds)
            return False
        self._recent.append(seconds)
        if len(self._recent) < RECENT:
            return False
        before, now = statistics.median(self._first), statistics.median(self._recent)
        state = self._judge(before, now)
        if state == self._state:
            return False
        self._state = state
        self.remark = (
            ""
            if state == "usual"
            else f"its round trip is {now * 1000:.0f} ms, and was {before * 1000:.0f} ms when the ring formed; "
            "`longspan plan` shows whether other layers would suit it better"
        )
        return True

    def _judge(self, before: float, now: float) -> Literal["usual", "slower", "faster"]:
        # Another limit for the way back, so that a link at the limit is not news every second.
        times = 2.0 if self._state == "usual" else 1.5
        if now > times * before + MARGIN_SECONDS:
            return "slower"
        if times * now + MARGIN_SECONDS < before:
            return "faster"
        return "usual"
