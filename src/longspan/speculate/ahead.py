"""Drafts of a model that runs ahead beside the coordinator: the proposer's side.

The model thinks in its own time, and nobody waits for it: `propose` gives what has arrived so far. What the
proposer says to the model is a `Told`, what the model says to it a `Thought`; how these travel is not its business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from longspan.speculate.proposer import NOTHING, Draft, Proposer


class Told(NamedTuple):
    """What a text has become. `key` names the text.

    tokens: committed since the last time, in order. wanted: tokens, committed and drafted together, up to which the
    model should think. ended: the text is over.
    """

    key: int
    tokens: tuple[int, ...] = ()
    wanted: int = 0
    ended: bool = False


class Thought(NamedTuple):
    """The model's draft behind the first `after` committed tokens of a text, as far as it has come."""

    key: int
    after: int
    draft: tuple[int, ...]


class Ahead(Proposer):
    """The chain that the model has thought of so far, less what was committed of it since."""

    name = "draft"

    def __init__(self, key: int, tell: Callable[[Told], None]) -> None:
        """tell: hands a message to the model, and returns at once."""
        self._key = key
        self._tell = tell
        self._told = 0
        self._wanted = 0
        self._recent: list[int] = []  # committed tokens that the newest thought did not know of yet
        self._untold = 0  # of those, how many the model was not told
        self._chain: list[int] = []
        self._wake: Callable[[], None] = lambda: None

    def attach(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def observe(self, committed: Sequence[int]) -> None:
        self._recent += committed
        self._untold += len(committed)
        self._follow(committed)

    def propose(self, tail: Sequence[int], budget: int) -> Draft:
        wanted = self._told + self._untold + len(tail) + budget
        if self._untold or wanted != self._wanted:
            news = tuple(self._recent[len(self._recent) - self._untold :])
            self._told += self._untold
            self._untold, self._wanted = 0, wanted
            self._tell(Told(self._key, news, wanted))
        length = len(tail)
        if length >= len(self._chain) or self._chain[:length] != list(tail):
            return NOTHING
        return Draft(self._chain[length : length + budget], rank=length + 1)

    def end(self) -> None:
        self._tell(Told(self._key, ended=True))
        self._wake = lambda: None  # what was woken refers to this proposer

    def think(self, thought: Thought) -> None:
        """A thought has arrived; it may know less of the text than this side does."""
        unknown = self._told + self._untold - thought.after
        del self._recent[: len(self._recent) - unknown]
        self._chain = list(thought.draft)
        self._follow(self._recent)
        if self._chain:
            self._wake()

    def _follow(self, committed: Sequence[int]) -> None:
        count = len(committed)
        if self._chain[:count] == list(committed):
            del self._chain[:count]
        else:
            self._chain.clear()
