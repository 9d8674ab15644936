"""Whether the MTP head shall draft: what that costs, what it brings, and when to try it again."""

from __future__ import annotations

import math

from longspan.speculate.acceptance import CommonBooks
from longspan.speculate.depth import Conditions, best_shape, margin, survival_of
from longspan.speculate.probe import LEAST_PAUSE, Probe

HEAD_BOOK = "mtp"
HEAD_DRAFTS = 4

_SMOOTHING = 0.1
_PROBE_DRAFTS = 8
"""Drafts by which the head is tried again where it does not pay: one would not say whether it would by now."""
_LEAST_PROBE_TRIPS = 2
_SELDOM = 32
"""Times its own length for which a probe is not repeated: beside others drafts may cost half of what they delay."""


class HeadSwitch:
    """seconds: what the head's drafts cost an iteration that has some. share: of the iterations."""

    def __init__(self, books: CommonBooks) -> None:
        self._books = books
        self.seconds = 0.0
        self.share = 0.0
        self._probes: dict[int, Probe] = {}  # by the magnitude of the crowd: what pays for one does not for many
        self._tried_until = -math.inf

    def measured(self, drafting: float) -> None:
        """The head took so long in an iteration, 0 where it did nothing."""
        self.share += _SMOOTHING * ((drafting > 0) - self.share)
        if drafting > 0:
            known = self.seconds or drafting
            self.seconds = known + _SMOOTHING * (drafting - known)

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
        chances = self._books.chances(HEAD_BOOK, HEAD_DRAFTS)
        drafting = self.with_drafts(bare, 1.0)
        shape = best_shape(survival_of(chances, HEAD_DRAFTS), drafting, HEAD_DRAFTS, open_ended=False)
        trip = max(bare.trip(1), bare.turn(1))
        pays = shape.rate > bare.sequences / trip * (1 + margin(bare.sequences))
        pays = pays and drafting.pays_beside(chances, shape.width)
        probe = self._probes.setdefault(bare.sequences.bit_length(), Probe())
        length = max(_LEAST_PROBE_TRIPS, math.ceil(_PROBE_DRAFTS / bare.sequences)) * trip
        if pays:
            probe.reset()
        elif probe.due(now, max(LEAST_PAUSE, _SELDOM * length)):
            self._tried_until = now + length
        return pays or now < self._tried_until
