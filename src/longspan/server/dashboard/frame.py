"""What the dashboard shows at one moment: a small struct, made from two looks at the engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from longspan.schedule.clocks import Clocks
from longspan.schedule.trace import TraceRecord, kind_of
from longspan.speculate.ledger import SpeculationStatistics
from longspan.status import EngineActivity, Readiness, RequestStatus, RingStatus

SHOWN_SECONDS = 6.0
"""How far back the timeline goes."""

MOST_TRIPS = 400
MOST_REQUESTS = 100


class Trip(msgspec.Struct, frozen=True, array_like=True):
    """An iteration for the timeline; seconds of the engine's clock. kind: "decode", "prefill" or "mixed".

    work: for each stage when it began and when it ended.
    """

    planned: float
    completed: float
    kind: str
    rows: int
    work: tuple[tuple[float, float], ...]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Of the time since the last frame where that makes sense, else of now; None: not known.

    useful_rows, stale_rows: decode and verify rows in flight, averaged. accepted: for each place in a window the
    share of drafts that came true, since the start. prediction_error: of the cost model, smoothed.
    """

    tokens_per_second: float
    running: int
    waiting: int
    slots: int
    kv_usage: float
    in_flight: int
    useful_rows: float | None
    stale_rows: float | None
    tokens_per_traversal: float | None
    accepted: tuple[float, ...]
    prediction_error: float | None
    guard: str | None
    finished: int
    failed: int
    generated: int


class DashboardFrame(msgspec.Struct, frozen=True, kw_only=True):
    """Everything. now: seconds of the engine's clock. model: its id. hidden_requests: under way and not listed."""

    now: float
    model: str
    ready: Readiness
    ring: RingStatus
    figures: Figures
    requests: tuple[RequestStatus, ...]
    hidden_requests: int
    trips: tuple[Trip, ...]
    shown_seconds: float = SHOWN_SECONDS


def dashboard_frame(
    ring: RingStatus, ready: Readiness, before: EngineActivity | None, now: EngineActivity, trips: Iterable[Trip]
) -> DashboardFrame:
    """before: the look that the last frame was made of. trips: to draw, oldest first."""
    return DashboardFrame(
        now=round(now.now, 4),
        model=ring.model_id,
        ready=ready,
        ring=ring,
        figures=_figures(before, now),
        requests=now.requests[:MOST_REQUESTS],
        hidden_requests=max(0, len(now.requests) - MOST_REQUESTS),
        trips=tuple(trips),
    )


def trips_of(records: Sequence[TraceRecord], clocks: Clocks | None) -> list[Trip]:
    """Records on the coordinator's clock; those of another ring than the clocks' have no work."""
    return [_trip(record, clocks.offsets if clocks is not None else ()) for record in records]


def _figures(before: EngineActivity | None, now: EngineActivity) -> Figures:
    statistics, planner = now.statistics, now.statistics.planner
    speculation = statistics.speculation
    seconds = now.now - before.now if before is not None else 0.0
    made = statistics.generated_tokens - (before.statistics.generated_tokens if before is not None else 0)
    useful, stale = _in_flight(before.statistics.speculation if before is not None else None, speculation)
    return Figures(
        tokens_per_second=made / seconds if seconds > 0 else 0.0,
        running=statistics.running,
        waiting=statistics.waiting,
        slots=statistics.slots,
        kv_usage=statistics.kv_usage,
        in_flight=statistics.in_flight,
        useful_rows=useful,
        stale_rows=stale,
        tokens_per_traversal=speculation.tokens_per_traversal if speculation is not None else None,
        accepted=_accepted(speculation),
        prediction_error=planner.prediction_error if planner is not None else None,
        guard=planner.guard.value if planner is not None else None,
        finished=statistics.requests_finished,
        failed=statistics.requests_failed,
        generated=statistics.generated_tokens,
    )


def _in_flight(
    before: SpeculationStatistics | None, now: SpeculationStatistics | None
) -> tuple[float | None, float | None]:
    """Useful and stale rows, averaged over the time between two looks in which anything was in flight."""
    if now is None:
        return None, None
    then, useful, stale = 0.0, 0.0, 0.0
    if before is not None:
        then = before.seconds
        useful, stale = before.useful_in_flight * then, before.stale_in_flight * then
    seconds = now.seconds - then
    if seconds <= 0:
        return 0.0, 0.0
    return (
        (now.useful_in_flight * now.seconds - useful) / seconds,
        (now.stale_in_flight * now.seconds - stale) / seconds,
    )


def _accepted(speculation: SpeculationStatistics | None) -> tuple[float, ...]:
    if speculation is None:
        return ()
    pairs = zip(speculation.accepted_by_position, speculation.drafted_by_position, strict=False)
    shares = [accepted / drafted if drafted else 0.0 for accepted, drafted in pairs]
    while shares and not shares[-1]:
        shares.pop()
    return tuple(shares)


def _trip(record: TraceRecord, offsets: Sequence[float]) -> Trip:
    work = []
    if len(offsets) == len(record.stages):
        for stage, offset in zip(record.stages, offsets, strict=True):
            started = (stage.received or 0.0) - offset + stage.waited
            work.append((round(started, 4), round(started + stage.worked, 4)))
    return Trip(
        round(record.planned_at, 4),
        round(record.completed_at, 4),
        kind_of(record.spans),
        sum([span.rows for span in record.spans]),
        tuple(work),
    )
