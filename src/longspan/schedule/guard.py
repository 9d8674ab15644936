"""Watches whether mixed iterations stay within what they were allowed.

A prediction can be wrong, a library can take another path: what counts is the time that was measured. Several
breaches in a row suspend mixing; after a pause one mixed iteration is tried, and the pause doubles while that
fails. It never stays off for good.
"""

from __future__ import annotations

import enum

from longspan.schedule.policy import Policy

SMOOTHING = 0.25


class GuardState(enum.StrEnum):
    """Whether prefill rows may join decode rows."""

    OPEN = "open"
    SUSPENDED = "suspended"
    PROBING = "probing"


class MixGuard:
    """Judges mixed iterations by the decode-only durations of the same number of rows."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._decode_seconds: dict[int, float] = {}
        self._in_a_row = 0
        self._pause = policy.guard_pause
        self._until: float | None = None
        self._probe_sent = False
        self.breaches = 0
        self.suspensions = 0

    def state(self, now: float) -> GuardState:
        """Open, or suspended until a time, or trying again."""
        if self._until is None:
            return GuardState.OPEN
        return GuardState.SUSPENDED if now < self._until else GuardState.PROBING

    def allows(self, now: float) -> bool:
        """True when a mixed iteration may be planned; while probing, only one at a time."""
        state = self.state(now)
        return state is GuardState.OPEN or (state is GuardState.PROBING and not self._probe_sent)

    def mixed_planned(self, now: float) -> None:
        """A mixed iteration is on its way."""
        self._probe_sent = self.state(now) is GuardState.PROBING

    def decode_observed(self, rows: int, seconds: float) -> None:
        """A decode-only iteration of so many rows took so long."""
        old = self._decode_seconds.get(rows, seconds)
        self._decode_seconds[rows] = old + SMOOTHING * (seconds - old)

    def decode_seconds(self, rows: int) -> float | None:
        """Smoothed duration of decode-only iterations of so many rows; None when there was none."""
        return self._decode_seconds.get(rows)

    def mixed_observed(self, rows: int, predicted: float, allowance: float, seconds: float, now: float) -> None:
        """A mixed iteration with so many decode rows took `seconds`.

        predicted: seconds of its decode rows alone by the cost model; the larger of it and the measured average
        counts. allowance: seconds that prefill was allowed to add.
        """
        alone = max(predicted, self._decode_seconds.get(rows, 0.0))
        if seconds > (alone + allowance) * (1.0 + self._policy.guard_tolerance):
            self._breach(now)
        else:
            self._in_a_row = 0
            if self.state(now) is GuardState.PROBING:
                self._until = None
                self._pause = self._policy.guard_pause
        self._probe_sent = False

    def ring_lost(self) -> None:
        """Nothing in flight comes back, a probe neither."""
        self._probe_sent = False
        self._decode_seconds.clear()

    def _breach(self, now: float) -> None:
        self.breaches += 1
        self._in_a_row += 1
        state = self.state(now)
        if state is GuardState.PROBING:
            self._pause = min(self._policy.guard_pause_limit, 2 * self._pause)
        elif state is GuardState.SUSPENDED or self._in_a_row < self._policy.guard_breaches:
            return
        self._in_a_row = 0
        self.suspensions += 1
        self._until = now + self._pause
