"""What an MTP head has seen of one slot, and what it is still to see.

A row of the head is the base model's hidden state at position p - 1 with the token at position p; it is named by p.
Only rows of committed tokens enter: the stage sampled every token itself, so it can tell a window that follows from
its own samples from one that was sent before a divergence was known.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from longspan.schedule.span import Phase, Span

Hidden = npt.NDArray[np.float32]


class Step(NamedTuple):
    """A row of a span on the committed path. token: the one that follows it, None when that is not known yet."""

    row: int
    position: int
    token: int | None


class Path(NamedTuple):
    """The rows of a span that are committed, from its first row on.

    diverged: the target took another token than the span had at that place.
    """

    steps: tuple[Step, ...]
    diverged: bool


def committed_path(span: Span, sampled: Mapping[int, int]) -> Path:
    """Follow the samples through a span that begins with a committed token.

    sampled: token by row. A row that was not sampled is followed by what the span has after it, as in a prompt.
    """
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(span.parents if span.parents is not None else range(-1, len(span.tokens) - 1)):
        children.setdefault(parent, []).append(node)
    steps: list[Step] = []
    node, position = 0, span.start
    while True:
        following = children.get(node, [])
        token = sampled.get(node)
        if token is None and following:
            token = span.tokens[following[0]]
        steps.append(Step(node, position, token))
        matching = [child for child in following if span.tokens[child] == token]
        if not matching:
            return Path(tuple(steps), diverged=bool(following))
        node, position = matching[0], position + 1


class DraftStream:
    """The rows of one slot, oldest first: `fed` of them are in the head's cache, the rest wait to be fed."""

    def __init__(self) -> None:
        self.fed = 0
        self._positions: list[int] = []
        self._tokens: list[int] = []
        self._hidden: list[Hidden] = []  # of the rows that wait
        # Position and token that this stage sampled last: a window that does not go on from there is stale.
        self._expected: tuple[int, int] | None = None
        # Position that a token is still to come for, and the hidden state before it.
        self._open: tuple[int, Hidden] | None = None

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def waiting(self) -> int:
        """Rows that are not in the head's cache yet."""
        return len(self._hidden)

    def trim(self, keep: int) -> None:
        """The slot keeps its first `keep` positions.

        The row of position `keep` stays for now: its hidden state is kept, and if the token that comes there is
        the one it was made with, it is right.
        """
        self._cut(keep + 1)
        if self._expected is not None and self._expected[0] > keep:
            self._expected = None
        if self._open is not None and self._open[0] > keep:
            self._open = None

    def clear(self) -> None:
        """The slot holds something else now."""
        self.lose()
        self._expected = None

    def lose(self) -> None:
        """The head forgets the rows of the slot, which itself stays as it is."""
        self._cut(-1)
        self._open = None

    def follow(self, span: Span, path: Path, hidden: Sequence[Hidden] | None) -> bool:
        """Enter a span's committed rows; False when the span is stale and nothing was entered.

        hidden: of each step of the path, (width,); None when they were not kept: then the head misses these rows.
        """
        if not self._is_live(span):
            return False
        if hidden is not None and self._open is not None and self._open[0] == span.start:
            self._enter(span.start, span.tokens[0], self._open[1])
        self._open = None
        self._drop_unlike(span.start, span.tokens[0])
        for index, step in enumerate(path.steps):
            if step.token is None:
                if hidden is not None:
                    self._open = (step.position + 1, hidden[index])
            elif hidden is not None:
                self._enter(step.position + 1, step.token, hidden[index])
        last = path.steps[-1]
        self._expected = None if last.token is None else (last.position + 1, last.token)
        return True

    def take(self) -> tuple[list[int], list[Hidden]]:
        """Tokens and hidden states of the waiting rows, which count as fed from now on."""
        tokens, hidden = self._tokens[self.fed :], self._hidden
        self.fed, self._hidden = len(self._positions), []
        return tokens, hidden

    def keep_waiting(self, most: int) -> None:
        """When more than `most` rows wait, drop the oldest, and with them all that were fed before."""
        surplus = self.waiting - most
        if surplus > 0:
            del self._positions[: self.fed + surplus], self._tokens[: self.fed + surplus]
            del self._hidden[:surplus]
            self.fed = 0

    def forget_oldest(self, rows: int) -> None:
        """Drop the oldest `rows` of the fed rows."""
        assert 0 <= rows <= self.fed
        del self._positions[:rows], self._tokens[:rows]
        self.fed -= rows

    def _is_live(self, span: Span) -> bool:
        if span.phase is not Phase.VERIFY or self._expected is None:
            return True  # prompts, replays and single decode rows hold committed tokens only
        position, token = self._expected
        # A window may begin with rows again that are committed already, as it does after a tree.
        ahead = position - span.start
        if not 0 <= ahead < len(span.tokens) or span.tokens[ahead] != token:
            return False
        if span.parents is not None and span.parents[: ahead + 1] != tuple(range(-1, ahead)):
            return False
        known = dict(zip(self._positions, self._tokens, strict=True)) if ahead else {}
        return all(known.get(span.start + row, span.tokens[row]) == span.tokens[row] for row in range(ahead))

    def _enter(self, position: int, token: int, hidden: Hidden) -> None:
        index = bisect.bisect_left(self._positions, position)
        if index < len(self._positions):
            if self._positions[index] == position and self._tokens[index] == token:
                return
            self._cut(position)
        self._positions.append(position)
        self._tokens.append(token)
        self._hidden.append(hidden)

    def _drop_unlike(self, position: int, token: int) -> None:
        """Drop the row of a position, and all after it, when it was made with another token."""
        index = bisect.bisect_left(self._positions, position)
        if index < len(self._positions) and (self._positions[index], self._tokens[index]) != (position, token):
            self._cut(position)

    def _cut(self, position: int) -> None:
        """Drop the rows from `position` on."""
        index = bisect.bisect_left(self._positions, position)
        del self._positions[index:], self._tokens[index:]
        self.fed = min(self.fed, index)
        del self._hidden[index - self.fed :]
