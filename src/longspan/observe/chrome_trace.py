"""A timeline as Chrome trace JSON, which Perfetto and chrome://tracing open."""

from __future__ import annotations

from typing import Any

import msgspec

from longspan.observe.timeline import StageSpan, Timeline, Trip
from longspan.schedule.trace import kind_of

_RING, _REQUESTS = 1, 2
"""Process numbers: rows of stages, rows of requests."""

_MICROSECONDS = 1e6


def chrome_trace(found: Timeline) -> bytes:
    """The JSON document. Times begin at the first plan; stages are threads, with arrows from stage to stage; each
    sequence has a row with its windows in flight."""
    start = min(trip.planned for trip in found.trips)
    events: list[dict[str, Any]] = [
        _name("process_name", _RING, 0, "ring"),
        _name("process_name", _REQUESTS, 0, "requests"),
        *(_name("thread_name", _RING, stage + 1, f"stage {stage}") for stage in range(found.stages)),
    ]
    for trip in found.trips:
        events += _trip_events(trip, start)
    for sequence in sorted({span.sequence for trip in found.trips for span in trip.spans}):
        events.append(_name("thread_name", _REQUESTS, sequence + 1, f"request {sequence}"))
    events.sort(key=lambda event: (event.get("ts", -1.0), event["ph"] != "M"))
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"})


def _trip_events(trip: Trip, start: float) -> list[dict[str, Any]]:
    def micro(moment: float) -> float:
        return round(_MICROSECONDS * (moment - start), 3)

    rows = sum(span.rows for span in trip.spans)
    title = f"{kind_of(trip.spans)} {rows}"
    events: list[dict[str, Any]] = []
    flow = {"cat": "trip", "name": "trip", "id": trip.iteration, "pid": _RING}
    for stage in trip.stages:
        thread = stage.stage + 1
        arguments = {
            "iteration": trip.iteration,
            "rows": rows,
            "sequences": [span.sequence for span in trip.spans],
            "waited_ms": round(1000 * (stage.started - stage.received), 3),
            "callback_ms": round(1000 * stage.callback, 3),
            "passes": stage.passes,
        }
        begin = micro(stage.started)
        events.append(
            {
                "ph": "X",
                "cat": "compute",
                "name": title,
                "pid": _RING,
                "tid": thread,
                "ts": begin,
                "dur": round(_MICROSECONDS * (stage.finished - stage.started), 3),
                "args": arguments,
            }
        )
        if len(trip.stages) > 1:
            events.append({**flow, "tid": thread, "ts": begin, **_arrow(trip, stage)})
    for span in trip.spans:
        identity = f"{trip.iteration}/{span.sequence}/{span.start}"
        place = {
            "cat": "window",
            "name": f"{span.phase.name.lower()} {span.rows}",
            "id": identity,
            "pid": _REQUESTS,
            "tid": span.sequence + 1,
        }
        begun = {"start": span.start, "rows": span.rows, "epoch": span.epoch, "iteration": trip.iteration}
        events.append({"ph": "b", **place, "ts": micro(trip.planned), "args": begun})
        events.append({"ph": "e", **place, "ts": micro(trip.completed)})
    return events


def _arrow(trip: Trip, stage: StageSpan) -> dict[str, Any]:
    if stage is trip.stages[0]:
        return {"ph": "s"}
    return {"ph": "f", "bp": "e"} if stage is trip.stages[-1] else {"ph": "t"}


def _name(what: str, process: int, thread: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": text}}
