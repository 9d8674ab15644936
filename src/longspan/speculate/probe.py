"""When to try again what did not pay."""

from __future__ import annotations

LEAST_PAUSE = 1.0
"""Seconds."""
_LONGEST = 16
"""Times the shortest pause."""


class Probe:
    """Lets something that was switched off try again, each time after twice the pause, up to a limit."""

    def __init__(self) -> None:
        self._pause = 0.0
        self._due: float | None = None

    def due(self, now: float, least: float = LEAST_PAUSE) -> bool:
        """True when it is time; the next time is later. least: the shortest pause, and a 16th of the longest."""
        self._pause = max(self._pause, least)
        if self._due is None:
            self._due = now + self._pause
            return False
        if now < self._due:
            return False
        self._pause = min(2 * self._pause, _LONGEST * least)
        self._due = now + self._pause
        return True

    def near(self, now: float) -> bool:
        """True when `due` would say so, or was not asked yet."""
        return self._due is None or now >= self._due

    def reset(self) -> None:
        """It is on again by its own merit."""
        self._pause = 0.0
        self._due = None
