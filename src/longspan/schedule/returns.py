"""When the iterations in flight come back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from longspan.schedule.plan_record import PlanRecord
from longspan.schedule.span import StageTiming

_SMOOTHING = 0.2


class Pause(NamedTuple):
    """back: seconds until decode rows can be planned. spare: seconds that every stage has nothing to do until these
    reach it."""

    back: float
    spare: float


class Returns:
    """Predicts the way through the ring: each stage takes what was predicted, one iteration after the other.

    What the links take is learned; times are seconds.
    """

    def __init__(self) -> None:
        self._links: float | None = None

    def measured(self, trip: float, timings: Sequence[StageTiming]) -> None:
        """An iteration came back `trip` seconds after it was planned."""
        links = max(0.0, trip - sum(timing.finished - timing.received for timing in timings))
        known = links if self._links is None else self._links
        self._links = known + _SMOOTHING * (links - known)

    def pause(self, in_flight: Iterable[PlanRecord], now: float) -> Pause | None:
        """The pause until the first iteration with decode rows is back; None when there is none in flight.

        in_flight: oldest first.
        """
        links = self._links or 0.0
        back: float | None = None
        free: dict[int, float] = {}
        hop = 0.0
        for record in in_flight:
            hop = links / (len(record.predicted) + 1)
            at = record.planned_at
            for stage, seconds in record.predicted.items():
                at = free[stage] = max(at + hop, free.get(stage, -math.inf)) + seconds
            if back is None and record.geometry.exact_rows:
                back = max(now, at + hop)
        if back is None:
            return None
        spare = min((back - max(now, at - hop * place) for place, at in enumerate(free.values(), 1)), default=0.0)
        return Pause(back - now, max(0.0, spare))

    def forget(self) -> None:
        """The ring formed again: its links may be others."""
        self._links = None
