"""How far the clocks of stages are from the coordinator's, estimated from frames and pings.

A frame leaves one clock and arrives by another, so the least difference over many frames is the link's delay plus
the difference of the two clocks. Over the whole ring the clocks cancel, and the sum of all delays is known exactly;
how it divides over the links follows from pings: the first and the last link take half a round trip of their stage.
What is left divides evenly over the links between stages. A ring of one or two stages is determined by that; of
more stages the inner ones are known within `uncertainty`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from longspan.schedule.trace import TraceRecord


class Clocks(msgspec.Struct, frozen=True):
    """offsets: seconds that a stage's clock is ahead of the coordinator's, by stage. delays: one way, of the links
    coordinator → 0, 0 → 1, …, last → coordinator. uncertainty: seconds by which offsets of inner stages may be
    off."""

    offsets: tuple[float, ...]
    delays: tuple[float, ...]
    uncertainty: float


def estimate_clocks(records: Sequence[TraceRecord]) -> Clocks | None:
    """From complete records of one ring; None when they do not tell when stages received."""
    stages = len(records[0].stages) if records else 0
    least = [float("inf")] * (stages + 1)
    trips: list[float | None] = [None] * stages
    for record in records:
        if len(record.stages) != stages or not stages:
            return None
        left = record.planned_at
        for index, stage in enumerate(record.stages):
            if stage.received is None:
                return None
            least[index] = min(least[index], stage.received - left)
            left = stage.received + stage.waited + stage.worked
            trips[index] = stage.round_trip if stage.round_trip is not None else trips[index]
        least[stages] = min(least[stages], record.completed_at - left)
    if not stages:
        return None
    delays = _divided(max(0.0, sum(least)), trips)
    offsets: list[float] = []
    ahead = 0.0
    for index in range(stages):
        ahead += least[index] - delays[index]
        offsets.append(ahead)
    inner = delays[1:-1]
    return Clocks(tuple(offsets), tuple(delays), sum(inner) / 2 if len(inner) > 1 else 0.0)


def _divided(total: float, trips: Sequence[float | None]) -> list[float]:
    """One-way delays of all links, which are `total` together. trips: round trips to stages; None: in this
    process."""
    links = len(trips) + 1
    if all(trip is None for trip in trips):
        return [total / links] * links
    first, last = (trips[0] or 0.0) / 2, (trips[-1] or 0.0) / 2
    if len(trips) == 1:
        return [total / 2, total / 2]
    # Pings are measured at another moment than the quickest frame; they may not take more than there is.
    scale = min(1.0, total / (first + last)) if first + last > 0 else 1.0
    first, last = first * scale, last * scale
    return [first, *[(total - first - last) / (links - 2)] * (links - 2), last]
