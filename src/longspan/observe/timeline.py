"""What every stage did, and when, on the coordinator's clock: trace records joined by iteration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from longspan.errors import UsageError
from longspan.observe.intervals import Interval
from longspan.schedule.clocks import Clocks, estimate_clocks
from longspan.schedule.trace import SpanShape, TraceRecord


class StageSpan(msgspec.Struct, frozen=True):
    """One stage's share of one iteration: received, started, finished. Seconds of the coordinator's clock.

    callback: seconds of it that reading the residual took. passes: over the layers.
    """

    stage: int
    received: float
    started: float
    finished: float
    callback: float
    passes: int


class Trip(msgspec.Struct, frozen=True):
    """An iteration around the ring. spans: what it carried; a window is identified by (iteration, sequence, start).

    stages: in order. useful, stale: see TraceRecord.
    """

    iteration: int
    planned: float
    completed: float
    spans: tuple[SpanShape, ...]
    stages: tuple[StageSpan, ...]
    useful: int
    stale: int

    @property
    def travels(self) -> Iterator[Interval]:
        """When it was on each link, coordinator to coordinator; planning and framing count as travel."""
        left = self.planned
        for stage in self.stages:
            yield left, stage.received
            left = stage.finished
        yield left, self.completed


class Timeline(msgspec.Struct, frozen=True):
    """Trips in the order of their completion. clocks: how stage times were brought to one clock. stages: how
    many."""

    trips: tuple[Trip, ...]
    clocks: Clocks
    stages: int

    def work(self, stage: int) -> list[Interval]:
        """When a stage computed."""
        return [(span.started, span.finished) for trip in self.trips for span in trip.stages if span.stage == stage]


def timeline(records: Iterable[TraceRecord]) -> Timeline:
    """Join records. When the ring formed with other stages in between, the last ring's are taken.

    Raises UsageError when there are none, or they are of a version that did not write when stages received.
    """
    kept: list[TraceRecord] = []
    for record in records:
        if kept and len(kept[-1].stages) != len(record.stages):
            kept.clear()
        kept.append(record)
    if not kept:
        raise UsageError("the trace has no iterations")
    clocks = estimate_clocks(kept)
    if clocks is None:
        raise UsageError("the trace does not say when stages received; record it again with this version")
    return Timeline(tuple(_trip(record, clocks) for record in kept), clocks, len(clocks.offsets))


def _trip(record: TraceRecord, clocks: Clocks) -> Trip:
    stages = []
    for stage, offset in zip(record.stages, clocks.offsets, strict=True):
        received = (stage.received or 0.0) - offset
        started = received + stage.waited
        stages.append(
            StageSpan(stage.stage, received, started, started + stage.worked, stage.callback, stage.sub_batches)
        )
    return Trip(
        record.iteration,
        record.planned_at,
        record.completed_at,
        record.spans,
        tuple(stages),
        record.useful,
        record.stale,
    )
