"""What a timeline says in numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec
import numpy as np

from longspan.observe.intervals import Interval, common, length, merged, seconds_by_count
from longspan.observe.timeline import Timeline


class StageFigures(msgspec.Struct, frozen=True):
    """One stage. busy: share of the active time in which it computed. waited: share in which something waited in
    its queue. work_ms: median of one iteration. offset_ms: of its clock, ahead of the coordinator's."""

    stage: int
    busy: float
    waited: float
    work_ms: float
    callback_ms: float
    offset_ms: float


class TimelineFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Shares are of the active time: seconds in which anything was in flight.

    computing: share in which exactly 0, 1, 2, … stages computed; they sum to 1, and weighted by their number to the
    sum of all busy shares. several_computing: two or more. exposed_wait: nobody computed although something was in
    flight, the 0 of `computing`. propagation_seconds: on links, of all trips. propagation_hidden: share of it
    during which some stage computed. in_flight: iterations, time-weighted. seconds_by_depth: sequence-seconds with
    1, 2, … decode or verify spans of one sequence in flight; depth: their average. useful_rows, stale_rows: see
    TraceRecord. delays_ms: one way, of each link. clock_uncertainty_ms: of offsets of inner stages.
    """

    iterations: int
    seconds: float
    active_seconds: float
    stages: tuple[StageFigures, ...]
    computing: tuple[float, ...]
    several_computing: float
    exposed_wait: float
    propagation_seconds: float
    propagation_hidden: float
    in_flight: float
    seconds_by_depth: tuple[float, ...]
    depth: float
    useful_rows: int
    stale_rows: int
    trip_ms: float
    delays_ms: tuple[float, ...]
    clock_uncertainty_ms: float


def timeline_figures(found: Timeline) -> TimelineFigures:
    """The figures of a whole timeline."""
    trips = found.trips
    flights = [(trip.planned, trip.completed) for trip in trips]
    active = merged(flights)
    seconds = length(active) or 1.0
    tracks = [found.work(stage) for stage in range(found.stages)]
    by_count = seconds_by_count(tracks, active)
    anybody = merged(interval for track in tracks for interval in track)
    travels = [travel for trip in trips for travel in trip.travels]
    propagation = length(travels)
    depths = _seconds_by_depth(found)
    computing = tuple(value / seconds for value in by_count)
    return TimelineFigures(
        iterations=len(trips),
        seconds=max(end for _, end in flights) - min(begin for begin, _ in flights),
        active_seconds=seconds,
        stages=tuple(_stage(found, stage, active, seconds) for stage in range(found.stages)),
        computing=computing,
        several_computing=sum(computing[2:]),
        exposed_wait=computing[0],
        propagation_seconds=propagation,
        propagation_hidden=_covered(travels, anybody) / propagation if propagation else 0.0,
        in_flight=length(flights) / seconds,
        seconds_by_depth=depths,
        depth=sum(depth * value for depth, value in enumerate(depths, 1)) / (sum(depths) or 1.0),
        useful_rows=sum(trip.useful for trip in trips),
        stale_rows=sum(trip.stale for trip in trips),
        trip_ms=1000 * float(np.median([end - begin for begin, end in flights])),
        delays_ms=tuple(1000 * delay for delay in found.clocks.delays),
        clock_uncertainty_ms=1000 * found.clocks.uncertainty,
    )


def _stage(found: Timeline, stage: int, active: list[Interval], seconds: float) -> StageFigures:
    spans = [span for trip in found.trips for span in trip.stages if span.stage == stage]
    return StageFigures(
        stage=stage,
        busy=common(((span.started, span.finished) for span in spans), active) / seconds,
        waited=common(((span.received, span.started) for span in spans), active) / seconds,
        work_ms=1000 * float(np.median([span.finished - span.started for span in spans])),
        callback_ms=1000 * float(np.median([span.callback for span in spans])),
        offset_ms=1000 * found.clocks.offsets[stage],
    )


def _covered(intervals: Iterable[Interval], cover: list[Interval]) -> float:
    """Sum over the intervals, each for itself, of the time that `cover` (merged) covers of it."""
    if not cover:
        return 0.0
    begins = np.array([begin for begin, _ in cover])
    ends = np.array([end for _, end in cover])
    sums = np.concatenate(([0.0], np.cumsum(ends - begins)))

    def until(moment: float) -> float:
        """Covered time before a moment."""
        index = int(np.searchsorted(begins, moment, side="right"))
        whole = float(sums[index])
        return whole - max(0.0, float(ends[index - 1]) - moment) if index else 0.0

    return sum(until(end) - until(begin) for begin, end in intervals if end > begin)


def _seconds_by_depth(found: Timeline) -> tuple[float, ...]:
    by_sequence: dict[int, list[Interval]] = defaultdict(list)
    for trip in found.trips:
        for span in trip.spans:
            if span.phase.is_exact:
                by_sequence[span.sequence].append((trip.planned, trip.completed))
    totals: dict[int, float] = defaultdict(float)
    for intervals in by_sequence.values():
        changes = sorted(change for begin, end in intervals for change in ((begin, 1), (end, -1)))
        depth, before = 0, 0.0
        for at, step in changes:
            if depth:
                totals[depth] += at - before
            depth, before = depth + step, at
    return tuple(totals[depth] for depth in range(1, max(totals, default=0) + 1))
