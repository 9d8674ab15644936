"""Stop strings, found across the borders of tokens."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Watches an answer for strings that end it.

    What it lets out and where it stops do not depend on how the text was cut into pieces: the stop string that is
    complete first ends the answer, and of two complete at the same character the longer one.

    stops: strings, none empty. include_stop: whether the stop string belongs to the answer.
    matched: the stop string that was found, or None.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        if "" in stops:
            raise ValueError("a stop string is empty")
        self._stops = tuple(stops)
        self._include_stop = include_stop
        # A stop string of which all but the last character has been seen is the most that can be held back.
        self._longest_prefix = max(map(len, stops), default=1) - 1
        self._held = ""
        self.matched: str | None = None

    @property
    def stopped(self) -> bool:
        """True once a stop string was found; text pushed afterwards is dropped."""
        return self.matched is not None

    def push(self, text: str) -> str:
        """Take more of the answer; returns what may go out now. What could begin a stop string is held back."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            end, start, self.matched = min(found)
            self._held = ""
            return text[:end] if self._include_stop else text[:start]
        border = len(text) - self._held_back(text)
        self._held = text[border:]
        return text[:border]

    def flush(self) -> str:
        """The answer ended for another reason: what was held back is part of it."""
        held, self._held = self._held, ""
        return held

    def _held_back(self, text: str) -> int:
        for length in range(min(self._longest_prefix, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
