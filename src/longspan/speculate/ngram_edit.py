"""Copies like the suffix proposer, and keeps its place in the source where the answer departs from it."""

from __future__ import annotations

from collections.abc import Sequence

from longspan.speculate.ngram_suffix import MAX_TOKENS, NgramSuffix
from longspan.speculate.proposer import NOTHING, Draft

LEAST_RUN = 12
"""Copied tokens before a departure that make it an edit of a copy, and not the end of a chance match: these had 4
to 10 in novel prose and code, and no text went back to where one had led."""

LONGEST_EDIT = 8
"""Tokens, old or new, that an edit may have; then the place in the source is given up."""

RUN_OF_EDIT = 16
"""Copied tokens for each further new token that an edit is taken to have until one is found in the source again."""

_LOST = -1


class NgramEdit(NgramSuffix):
    """For texts that repeat with changes: a name, a number, a renamed variable.

    After a departure no suffix matches until a whole seed was written again. Until then the draft goes on in the
    source: behind the first place, at most eight tokens on, where the source has the last written token, else one
    token further for each written one, for as many as the copy was long enough to promise. Such drafts have a
    book of their own. A match at the place where the copy goes on counts the tokens before the departure too: its
    rank is the length of the whole run. A match elsewhere that is shorter than this run is taken for chance: the
    new name stands in other places as well.
    """

    name = "ngram-edit"

    def __init__(self, least: int = 3, max_tokens: int = MAX_TOKENS) -> None:
        super().__init__(least, max_tokens)
        self._place = _LOST  # index of the token that comes next if the copy goes on
        self._run = 0  # tokens that were copied up to there
        self._written = 0  # tokens since the departure; 0 while the copy goes on

    def observe(self, committed: Sequence[int]) -> None:
        before = len(self.tokens)
        super().observe(committed)
        if len(self.tokens) != before + len(committed):
            self._place = _LOST  # the older half is gone, and with it all indices
        elif self._place != _LOST:
            self._follow(committed)

    def propose(self, tail: Sequence[int], budget: int) -> Draft:
        end, match = self.find(tail)
        expected = self._expected(len(self.tokens)) if self._place != _LOST else _LOST
        departed = self._written and not tail and 0 <= expected < len(self.tokens) and self._promises(expected)
        if match and not (departed and end != expected and match < self._run):
            run = match
            if end - len(tail) == expected:
                run = max(match, self._run + len(tail))
            if not tail:
                self._place, self._run, self._written = end, run, 0
            return Draft(self.copy(end, tail, min(budget, 2 * match)), NgramSuffix.name, run)
        if not departed:
            return NOTHING
        return Draft(self.copy(expected, tail, min(budget, LONGEST_EDIT)))

    def _follow(self, committed: Sequence[int]) -> None:
        """Keep the place in step with what was written."""
        tokens = self.tokens
        first = len(tokens) - len(committed)
        for index in range(first, len(tokens)):
            expected = self._expected(index)
            if expected < index and tokens[expected] == tokens[index]:
                self._place = expected + 1
                self._run += 1
                self._written = 0
            elif self._run < LEAST_RUN or self._written >= LONGEST_EDIT:
                self._place = _LOST
                return
            else:
                self._written += 1

    def _promises(self, expected: int) -> bool:
        """Whether the text is likely to go on in the source at this index."""
        return self._written <= 1 + self._run // RUN_OF_EDIT or self.tokens[expected - 1] == self.tokens[-1]

    def _expected(self, end: int) -> int:
        """Index of the token that should come at index `end` of the stream."""
        place, written = self._place, self._written
        if not written:
            return place
        last = self.tokens[end - 1]
        for index in range(place, min(place + LONGEST_EDIT, end - written)):
            if self.tokens[index] == last:
                return index + 1
        return place + written
