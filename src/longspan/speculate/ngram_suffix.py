"""Copies what followed the longest earlier occurrence of the current suffix."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from longspan.speculate.proposer import NOTHING, Draft, Proposer

LONGEST_SEED = 8
LONGEST_MATCH = 64
"""Tokens; a longer common suffix makes a draft no safer."""

MAX_CANDIDATES = 32
"""Earlier occurrences of a seed that one lookup compares, the most recent first."""

MAX_TOKENS = 65536
"""Committed tokens that stay indexed; beyond, the older half is forgotten."""

_NOWHERE = -1


class NgramSuffix(Proposer):
    """Finds the seed (the last few tokens) in the committed tokens and goes backwards from there.

    The longest backward match wins, the most recent among equals, and the draft has at most twice as many tokens as
    the match. A draft's rank is the length of its match. A seed that was not seen before proposes nothing.

    source: index (in committed tokens) that the token after the last draft would be copied from, or -1.
    """

    name = "ngram-suffix"

    def __init__(self, least: int = 3, max_tokens: int = MAX_TOKENS) -> None:
        """least: shortest match in tokens; a seed has min(least, 8)."""
        self._seed = max(1, min(least, LONGEST_SEED))
        self._max_tokens = max_tokens
        self._heads: dict[tuple[int, ...], int] = {}
        self._earlier = array("i")
        self.tokens: list[int] = []
        self.source = _NOWHERE

    def observe(self, committed: Sequence[int]) -> None:
        tokens, heads, seed = self.tokens, self._heads, self._seed
        before = len(tokens)
        tokens += committed
        append = self._earlier.append
        for end in range(before + 1, len(tokens) + 1):
            key = tuple(tokens[end - seed : end]) if end >= seed else ()
            append(heads.get(key, _NOWHERE))
            heads[key] = end
        if len(tokens) > self._max_tokens:
            self._forget_older_half()

    def propose(self, tail: Sequence[int], budget: int) -> Draft:
        end, match = self.find(tail)
        if not match:
            self.source = _NOWHERE
            return NOTHING
        return Draft(self.copy(end, tail, min(budget, 2 * match)), rank=match)

    def find(self, tail: Sequence[int]) -> tuple[int, int]:
        """(end, length) of the best match: tokens[end - length : end] is the stream's suffix; (-1, 0): none."""
        tokens, seed = self.tokens, self._seed
        suffix = list(tail[-LONGEST_MATCH:])
        if len(suffix) < LONGEST_MATCH:
            suffix = tokens[len(suffix) - LONGEST_MATCH :] + suffix
        longest = len(suffix)
        if longest < seed:
            return _NOWHERE, 0
        candidate = self._heads.get(tuple(suffix[-seed:]), _NOWHERE)
        if not tail and candidate == len(tokens):  # the stream's own end, which nothing follows yet
            candidate = self._earlier[candidate - 1]
        best, best_length = _NOWHERE, 0
        for _ in range(MAX_CANDIDATES):
            if candidate == _NOWHERE:
                break
            reach = min(longest, candidate)
            # A candidate that differs where the best one still matched, or just beyond, cannot be longer.
            if best_length < reach and (
                not best_length or tokens[candidate - 1 - best_length] == suffix[-1 - best_length]
            ):
                length = seed
                while length < reach and tokens[candidate - 1 - length] == suffix[-1 - length]:
                    length += 1
                if length > best_length:
                    best, best_length = candidate, length
                    if length == longest:
                        break
            candidate = self._earlier[candidate - 1]
        return best, best_length

    def copy(self, source: int, tail: Sequence[int], count: int) -> list[int]:
        """`count` tokens of the stream (committed, tail, and then the copy itself) from index `source` on."""
        drafted = self.tokens[source : source + count]
        self.source = source + count
        if len(drafted) < count:
            period = [*self.tokens[source:], *tail]
            drafted = period[:count]
            while len(drafted) < count:
                drafted += period[: count - len(drafted)]
        return drafted

    def _forget_older_half(self) -> None:
        kept = self.tokens[-(self._max_tokens // 2) :]
        self.tokens = []
        self._earlier = array("i")
        self._heads = {}
        self.source = _NOWHERE
        self.observe(kept)
