"""Whether the MTP head shall draft: what that costs, what it brings, and when to try it again.

For one sequence alone this is predicted well. Beside others windows wait for each other in ways that no formula
here knows, so what came with drafts and without them corrects what is predicted for each.
"""

from __future__ import annotations

import copy
import math

from longspan.speculate.acceptance import CommonBooks
from longspan.speculate.calibration import Calibration
from longspan.speculate.depth import Conditions, best_shape, margin, survival_of
from longspan.speculate.probe import LEAST_PAUSE, Probe

HEAD_BOOK = "mtp"
HEAD_DRAFTS = 4

_SMOOTHING = 0.1
_PROBE_DRAFTS = 8
"""Drafts by which the head is tried again where it does not pay: one would not say whether it would by now."""
_LEAST_PROBE_TRIPS = 3
_LONGEST_PAUSE = 1.0
"""Seconds between two decisions after which what came in between tells nothing: the ring was idle."""
_SELDOM = 32
"""Times its own length for which a probe is not repeated: beside others drafts may cost half of what they delay."""


class HeadSwitch:
    """seconds: what the head's drafts cost an iteration that has some. share: of the iterations.

    follows: whether the head shall keep in step while it does not draft, which takes a busy stage a few percent of
    its time: only where by prediction it might pay.
    """

    def __init__(self, books: CommonBooks) -> None:
        self._books = books
        self.seconds = 0.0
        self.share = 0.0
        self.follows = True
        self._probes: dict[int, Probe] = {}  # by the magnitude of the crowd: what pays for one does not for many
        self._tried_until = -math.inf
        self._calibrations: dict[tuple[int, bool], Calibration] = {}  # by that magnitude, with drafts and without
        self._last: dict[bool, Calibration] = {}
        self._current: Calibration | None = None
        self._predicted = 0.0  # tokens a second
        self._since = self._settled = -math.inf
        self._tokens = 0
        self._disturbed = False

    def measured(self, drafting: float) -> None:
        """The head took so long in an iteration, 0 where it did nothing."""
        self.share += _SMOOTHING * ((drafting > 0) - self.share)
        if drafting > 0:
            known = self.seconds or drafting
            self.seconds = known + _SMOOTHING * (drafting - known)

    def committed(self, tokens: int, *, alone: bool) -> None:
        """So many tokens came; alone: no prompts came with them."""
        self._tokens += tokens
        self._disturbed = self._disturbed or not alone

    def with_drafts(self, bare: Conditions, share: float | None = None) -> Conditions:
        """What the ring is like while the head drafts: on the last stage, whichever stage is the slowest.

        share: of the iterations in which it does; None: what it was lately. Behind a long match nobody asks it, and
        what it costs then is not what it costs where it drafts.
        """
        seconds = (self.share if share is None else share) * self.seconds
        return bare._replace(
            seconds=[cost + seconds for cost in bare.seconds],
            link=max(0.0, bare.link - (bare.spread - 1) * seconds),
        )

    def decide(self, bare: Conditions, now: float) -> bool:
        """Whether drafts of the head would pay for themselves, or are tried again."""
        self._account(now)
        chances = self._books.chances(HEAD_BOOK, HEAD_DRAFTS)
        drafting = self.with_drafts(bare, 1.0)
        shape = best_shape(survival_of(chances, HEAD_DRAFTS), drafting, HEAD_DRAFTS, open_ended=False)
        trip = max(bare.trip(1), bare.turn(1))
        plain = bare.sequences / trip
        crowd = bare.sequences.bit_length()
        with_drafts, without = (self._calibration(bare.sequences, drafts) for drafts in (True, False))
        pays = shape.rate * with_drafts.factor > plain * without.factor * (1 + margin(bare.sequences))
        probe = self._probes.setdefault(crowd, Probe())
        length = max(_LEAST_PROBE_TRIPS, math.ceil(_PROBE_DRAFTS / bare.sequences)) * trip
        if pays:
            probe.reset()
        elif probe.due(now, max(LEAST_PAUSE, _SELDOM * length)):
            self._tried_until = now + length
        wanted = pays or now < self._tried_until
        self.follows = wanted or shape.rate > plain
        current = with_drafts if wanted else without
        if current is not self._current:  # for one alone it always is: nothing is learned of it
            self._current = current
            self._settled = now + trip  # what comes until then was sent before
        self._predicted = max(plain, shape.rate) if wanted else plain
        return wanted

    def _calibration(self, sequences: int, drafts: bool) -> Calibration:
        if sequences == 1:
            return Calibration()
        key = (sequences.bit_length(), drafts)
        if key not in self._calibrations:
            # A crowd that is new is presumed to be like the last one.
            self._calibrations[key] = copy.copy(self._last.get(drafts, Calibration()))
        self._last[drafts] = self._calibrations[key]
        return self._calibrations[key]

    def _account(self, now: float) -> None:
        """Compare what came since the last decision with what was predicted then."""
        seconds = now - self._since
        current = self._current if self._since >= self._settled and not self._disturbed else None
        if current is not None and 0 < seconds < _LONGEST_PAUSE:
            current.observe(self._tokens, self._predicted * seconds)
        self._since = now
        self._tokens = 0
        self._disturbed = False
