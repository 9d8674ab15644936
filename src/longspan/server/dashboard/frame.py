"""What the dashboard shows at one moment: a small struct, made from two looks at the engine."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from longspan.schedule.clocks import estimate_clocks
from longspan.schedule.trace import TraceRecord, kind_of
from longspan.speculate.ledger import SpeculationStatistics
from longspan.status import EngineActivity, Readiness, RequestStatus, RingStatus

SHOWN_SECONDS = 6.0
"""How far back the timeline goes."""

MOST_TRIPS = 400
MOST_REQUESTS = 100


class Trip(msgspec.Struct, frozen=True, array_like=True):
    """An iteration for the timeline; seconds before now, so 0 is now. kind: "decode", "prefill" or "mixed".

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
    """Everything. model: its id. hidden_requests: under way and not listed."""

    model: str
    ready: Readiness
    ring: RingStatus
    figures: Figures
    requests: tuple[RequestStatus, ...]
    hidden_requests: int
    trips: tuple[Trip, ...]
    shown_seconds: float = SHOWN_SECONDS


def dashboard_frame(
    ring: RingStatus,
    ready: Readiness,
    before: EngineActivity | None,
    now: EngineActivity,
    recent: Sequence[TraceRecord],
) -> DashboardFrame:
    """before: the look that the last frame was made of. recent: iterations to draw, oldest first."""
    return DashboardFrame(
        model=ring.model_id,
        ready=ready,
        ring=ring,
        figures=_figures(before, now),
        requests=now.requests[:MOST_REQUESTS],
        hidden_requests=max(0, len(now.requests) - MOST_REQUESTS),
        trips=_trips(recent[-MOST_TRIPS:], now.now),
    )


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


def _trips(recent: Sequence[TraceRecord], now: float) -> tuple[Trip, ...]:
    """Trips on the coordinator's clock. Those of a ring with another number of stages are left out."""
    stages = len(recent[-1].stages) if recent else 0
    records = [record for record in recent if len(record.stages) == stages]
    clocks = estimate_clocks(records)
    found = []
    for record in records:
        work = []
        for stage, offset in zip(record.stages, clocks.offsets if clocks is not None else (), strict=False):
            started = (stage.received or 0.0) - offset + stage.waited - now
            work.append((round(started, 4), round(started + stage.worked, 4)))
        found.append(
            Trip(
                round(record.planned_at - now, 4),
                round(record.completed_at - now, 4),
                kind_of(record.spans),
                sum(span.rows for span in record.spans),
                tuple(work),
            )
        )
    return tuple(found)
