"""How often drafts come true: by proposer and rank, over everything and in one sequence.

For each book (a proposer's name) and rank the chance is kept that a draft token is right when all before it were.
Survival of a draft is the product along it. Ranks share buckets, the wider the higher. What a bucket has not seen
is filled in by a fit a_i = a1 * rho^(i-1) over the ranks that it has seen (a measured chain in the field:
a1 = 0.796, rho = 0.945), and a sequence leans on the books of all sequences until it has its own experience.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from longspan.speculate.calibration import Calibration
from longspan.speculate.proposer import Draft

HIGHEST_RANK = 64
_LAST_OF_BUCKET = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, HIGHEST_RANK)
BUCKET_OF_RANK = [0] * (HIGHEST_RANK + 1)
"""Bucket of each rank; higher ranks count as the highest."""
for _bucket, _last in reversed(list(enumerate(_LAST_OF_BUCKET))):
    BUCKET_OF_RANK[: _last + 1] = [_bucket] * (_last + 1)
_BUCKETS = len(_LAST_OF_BUCKET)
_MIDDLE = [(low + high + 1) / 2 - 1 for low, high in zip((0, *_LAST_OF_BUCKET[:-1]), _LAST_OF_BUCKET, strict=True)]
"""Rank - 1 in the middle of each bucket: the exponent of rho."""

_LEAST, _MOST = 0.01, 0.999
"""Bounds of an estimate: nothing is certain for ever."""

_COMMON_DECAY = 0.998
_OWN_DECAY = 0.995
"""What an observation keeps of its weight at each later one of its bucket: memories of about 500 and 200."""

_COMMON_TRUST = 4.0
_OWN_TRUST = 12.0
"""Observations that weigh as much as the estimate they are mixed with."""

_FAILURES_TRUST = 6.0
"""Failures that are taken to have been seen and expected before any were."""

_REFRESH = 16
"""Observations after which the common estimates are computed anew."""

_EXPECTED_LENGTH = 32
"""Tokens of a draft that count when drafts are compared."""


def starting_chance(book: str, rank: float) -> float:
    """The estimate before anything was seen; set by hand, and soon outweighed.

    It rises with the length of a match and falls along a chain; behind an edit the first token decides.
    """
    if book == "ngram-suffix":
        return 1 - 0.55 * math.exp(-0.083 * rank)
    if book == "ngram-edit":
        return 0.6 if rank < 1.5 else 0.93
    return 0.65 * math.exp(-0.03 * (rank - 1))


class Book:
    """Decayed counts of one book by bucket."""

    __slots__ = ("_decay", "hits", "trials")

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self.hits = [0.0] * _BUCKETS
        self.trials = [0.0] * _BUCKETS

    def record(self, bucket: int, accepted: bool) -> None:
        """One draft token whose predecessors were right came true, or did not."""
        decay = self._decay
        self.trials[bucket] = self.trials[bucket] * decay + 1
        self.hits[bucket] = self.hits[bucket] * decay + accepted

    def failures_against(self, chances: Sequence[float]) -> float:
        """How often drafts fail here, as a multiple of what these chances let expect; near 1 with little data.

        A text that is copied word for word is copied at every rank: what was seen at one tells about the others.
        """
        expected = seen = _FAILURES_TRUST
        for hits, trials, chance in zip(self.hits, self.trials, chances, strict=True):
            expected += trials * (1 - chance)
            seen += trials - hits
        return seen / expected

    def fit(self) -> tuple[float, float] | None:
        """(a1, rho) of a_i = a1 * rho^(i-1), by weighted least squares on the logarithms; None without data.

        The weight of a bucket is the inverse variance of its logarithm: trials * a / (1 - a).
        """
        weight = along = squares = level = cross = 0.0
        for exponent, hits, trials in zip(_MIDDLE, self.hits, self.trials, strict=True):
            if trials < 1:
                continue
            chance = _bounded((hits + 0.5) / (trials + 1))
            own = trials * chance / (1 - chance)
            value = math.log(chance)
            weight += own
            along += own * exponent
            squares += own * exponent * exponent
            level += own * value
            cross += own * exponent * value
        if not weight:
            return None
        spread = weight * squares - along * along
        slope = (weight * cross - along * level) / spread if spread > 1e-9 * weight * weight else 0.0
        return math.exp((level - slope * along) / weight), math.exp(slope)


class _CommonBook:
    """A book over all sequences, with its estimates."""

    def __init__(self, name: str) -> None:
        self.book = Book(_COMMON_DECAY)
        self._start = [starting_chance(name, exponent + 1) for exponent in _MIDDLE]
        self._estimates = self._start
        self._news = 0

    def record(self, bucket: int, accepted: bool) -> None:
        self.book.record(bucket, accepted)
        self._news += 1

    @property
    def estimates(self) -> list[float]:
        """Chance of each bucket."""
        if self._news >= _REFRESH or (self._news and self._estimates is self._start):
            self._news = 0
            self._estimates = self._compute()
        return self._estimates

    def _compute(self) -> list[float]:
        book = self.book
        fit = book.fit()
        seen = sum(book.trials)
        better = book.failures_against(self._start)
        estimates = []
        for bucket, start in enumerate(self._start):
            chance = _bounded(1 - (1 - start) * better)
            if fit is not None:
                fitted = _bounded(fit[0] * fit[1] ** _MIDDLE[bucket])
                chance = (chance * _REFRESH + fitted * seen) / (_REFRESH + seen)
            # Other ranks may make it more careful, never bolder: where one text was copied word for word, a short
            # match in the next text is a chance match as before.
            chance = min(chance, start)
            mixed = (book.hits[bucket] + _COMMON_TRUST * chance) / (book.trials[bucket] + _COMMON_TRUST)
            estimates.append(_bounded(mixed))
        return estimates


class CommonBooks:
    """Every proposer's book, over all sequences."""

    def __init__(self) -> None:
        self._books: dict[str, _CommonBook] = {}
        self._gains: dict[str, Calibration] = {}

    def gains(self, name: str) -> Calibration:
        """What windows of a crowd brought beyond their free token, against what was expected of their drafts.

        Of many drafts those are sent that promise most, and so those of which too much is expected. name: the book
        of the first draft.
        """
        return self._gains.setdefault(name, Calibration())

    def book(self, name: str) -> _CommonBook:
        """The book of a proposer, made when it is first asked for."""
        found = self._books.get(name)
        if found is None:
            found = self._books[name] = _CommonBook(name)
        return found

    def chances(self, name: str, count: int) -> list[float]:
        """Chance of the ranks 1 … count of a book."""
        estimates = self.book(name).estimates
        return [estimates[BUCKET_OF_RANK[min(rank, HIGHEST_RANK)]] for rank in range(1, count + 1)]

    def fits(self) -> dict[str, tuple[float, float]]:
        """(a1, rho) of every book that has data."""
        return {name: fit for name, book in self._books.items() if (fit := book.book.fit()) is not None}


class SequenceBooks:
    """The books as one sequence sees them: its own experience first, that of all behind it."""

    def __init__(self, common: CommonBooks) -> None:
        self._common = common
        self._own: dict[str, Book] = {}
        self._estimates: dict[str, list[float]] = {}

    def gains(self, name: str) -> Calibration:
        """See `CommonBooks.gains`."""
        return self._common.gains(name)

    def record(self, name: str, rank: int, accepted: bool) -> None:
        """A draft token of this book, whose predecessors were right, came true or did not."""
        bucket = BUCKET_OF_RANK[rank] if rank < HIGHEST_RANK else _BUCKETS - 1
        own = self._own.get(name)
        if own is None:
            own = self._own[name] = Book(_OWN_DECAY)
        own.record(bucket, accepted)
        self._common.book(name).record(bucket, accepted)
        self._estimates.pop(name, None)

    def judge(self, draft: Draft, committed: Sequence[int]) -> None:
        """Compare a draft that was not sent with what was committed where it would have been."""
        for offset, (token, actual) in enumerate(zip(draft.tokens, committed, strict=False)):
            self.record(draft.book, draft.rank + offset, token == actual)
            if token != actual:
                return

    def chances(self, draft: Draft) -> list[float]:
        """For each token of a draft, the chance that it is right when all before it are."""
        estimates = self._estimates.get(draft.book)
        if estimates is None:
            estimates = self._estimates[draft.book] = self._estimate(draft.book)
        rank, count = draft.rank, len(draft.tokens)
        buckets = BUCKET_OF_RANK[rank : rank + count]
        chances = [estimates[bucket] for bucket in buckets]
        return chances + [estimates[-1]] * (count - len(chances))

    def expected(self, draft: Draft) -> float:
        """How many tokens a draft, and what may follow it, will bring, as far as the first 32 go."""
        chances = self.chances(draft)[:_EXPECTED_LENGTH]
        if draft.continues:
            chances += [chances[-1]] * (_EXPECTED_LENGTH - len(chances))
        expected: float = sum(accumulate(chances, mul))
        return expected

    def _estimate(self, name: str) -> list[float]:
        common = self._common.book(name).estimates
        own = self._own.get(name)
        if own is None:
            return common
        better = own.failures_against(common)
        return [
            _bounded((hits + _OWN_TRUST * _bounded(1 - (1 - chance) * better)) / (trials + _OWN_TRUST))
            for hits, trials, chance in zip(own.hits, own.trials, common, strict=True)
        ]


def _bounded(chance: float) -> float:
    return min(_MOST, max(_LEAST, chance))
