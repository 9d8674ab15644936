"""Counts which token followed each short context, and goes on with the most frequent one."""

from __future__ import annotations

from collections.abc import Sequence

from longspan.speculate.proposer import NOTHING, Draft, Proposer

LONGEST_CONTEXT = 4

MAX_CONTEXTS = 65536
"""Contexts of one length before the older ones are forgotten."""

_LEAST_SEEN = 2
_LEAST_SHARE = 0.5
"""A context of two tokens must have been seen this often, any context's token must have this share of it."""

_BITS = 32


class _Followers:
    """What followed one context that was seen more than once. counts: of all but the best."""

    __slots__ = ("best", "best_count", "counts", "total")

    def __init__(self, first: int, second: int) -> None:
        self.best = second
        self.best_count = 1 + (first == second)
        self.counts = {} if first == second else {first: 1}
        self.total = 2

    def add_other(self, token: int) -> None:
        """Count a token that is not the best so far."""
        count = self.counts.pop(token, 0) + 1
        if count >= self.best_count:  # the most recent among equals
            self.counts[self.best] = self.best_count
            self.best, self.best_count = token, count
        else:
            self.counts[token] = count


class _Table:
    """Contexts of one length, in two generations, so that memory is bounded and the recent ones stay.

    Most contexts are seen once; for those only the token is kept.
    """

    __slots__ = ("limit", "old", "young")

    def __init__(self, limit: int) -> None:
        self.limit = max(1, limit // 2)
        self.young: dict[int, int | _Followers] = {}
        self.old: dict[int, int | _Followers] = {}

    def add(self, context: int, token: int) -> None:
        """The context was followed by the token."""
        young = self.young
        entry = young.get(context)
        if entry is None:
            if len(young) >= self.limit:
                self.old, self.young = young, {}
                young = self.young
            entry = self.old.pop(context, None) if self.old else None
            if entry is None:
                young[context] = token
                return
            young[context] = entry
        if isinstance(entry, int):
            young[context] = _Followers(entry, token)
            return
        entry.total += 1
        if token == entry.best:
            entry.best_count += 1
        else:
            entry.add_other(token)

    def best(self, context: int) -> tuple[int, int] | None:
        """(token, how often the context was seen) of the most frequent follower, if half of them are it."""
        entry = self.young.get(context)
        if entry is None:
            entry = self.old.get(context)
            if entry is None:
                return None
        if isinstance(entry, int):
            return entry, 1
        if entry.best_count < _LEAST_SHARE * entry.total:
            return None
        return entry.best, entry.total


class NgramCache(Proposer):
    """Contexts of two, three and four tokens of this sequence; the longest that has a favourite decides each token.

    A draft's rank is its place in the chain since the committed tokens.
    """

    name = "ngram-cache"

    def __init__(self, max_contexts: int = MAX_CONTEXTS) -> None:
        self._two, self._three, self._four = (_Table(max_contexts) for _ in range(3))
        self._recent: list[int] = []

    def observe(self, committed: Sequence[int]) -> None:
        # A context is a number: its tokens, the last one lowest. Each length has a table of its own.
        tokens = [*self._recent, *committed]
        two, three, four = self._two.add, self._three.add, self._four.add
        for index in range(max(2, len(self._recent)), len(tokens)):
            token = tokens[index]
            context = tokens[index - 1] | tokens[index - 2] << _BITS
            two(context, token)
            if index > 2:
                context |= tokens[index - 3] << 2 * _BITS
                three(context, token)
                if index > 3:
                    four(context | tokens[index - 4] << 3 * _BITS, token)
        self._recent = tokens[-LONGEST_CONTEXT:]

    def propose(self, tail: Sequence[int], budget: int) -> Draft:
        stream = [*self._recent, *tail[-LONGEST_CONTEXT:]]
        start = len(stream)
        for _ in range(budget):
            token = self._follower(stream)
            if token is None:
                break
            stream.append(token)
        return Draft(stream[start:], rank=len(tail) + 1) if len(stream) > start else NOTHING

    def _follower(self, stream: list[int]) -> int | None:
        length = len(stream)
        if length < 2:
            return None
        two = stream[-1] | stream[-2] << _BITS
        if length > 2:
            three = two | stream[-3] << 2 * _BITS
            if length > 3:
                found = self._four.best(three | stream[-4] << 3 * _BITS)
                if found is not None:
                    return found[0]
            found = self._three.best(three)
            if found is not None:
                return found[0]
        found = self._two.best(two)
        return found[0] if found is not None and found[1] >= _LEAST_SEEN else None
