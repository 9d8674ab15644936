"""A timeline as OpenTelemetry spans, in the JSON form of OTLP: what a collector's file receiver and `/v1/traces`
take."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

import longspan
from longspan.observe.timeline import Timeline, Trip
from longspan.schedule.trace import kind_of

_INTERNAL = 1
"""SpanKind."""


def otlp_trace(found: Timeline, *, ended: float) -> bytes:
    """One document. Every iteration is a trace: a span around the ring, and a child for each stage's compute.

    ended: Unix seconds of the last completion; the trace itself only knows a monotonic clock.
    """
    shift = ended - max(trip.completed for trip in found.trips)
    spans = [span for trip in found.trips for span in _spans(trip, shift)]
    scope = {"name": "longspan", "version": longspan.__version__}
    resource = {"attributes": [_attribute("service.name", "longspan")]}
    return msgspec.json.encode(
        {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": scope, "spans": spans}]}]}
    )


def _spans(trip: Trip, shift: float) -> list[dict[str, Any]]:
    # Identities follow from what is told, so that the same trace gives the same document.
    trace = hashlib.sha256(f"{trip.iteration} {trip.planned}".encode()).hexdigest()[:32]
    root = hashlib.sha256(f"{trace} ring".encode()).hexdigest()[:16]
    rows = sum(span.rows for span in trip.spans)

    def span(name: str, identity: str, begin: float, end: float, attributes: dict[str, Any]) -> dict[str, Any]:
        return {
            "traceId": trace,
            "spanId": identity,
            "name": name,
            "kind": _INTERNAL,
            "startTimeUnixNano": str(round(1e9 * (begin + shift))),
            "endTimeUnixNano": str(round(1e9 * (end + shift))),
            "attributes": [_attribute(f"longspan.{key}", value) for key, value in attributes.items()],
        }

    facts = {"iteration": trip.iteration, "rows": rows, "useful_rows": trip.useful, "stale_rows": trip.stale}
    found = [span(kind_of(trip.spans), root, trip.planned, trip.completed, facts)]
    for stage in trip.stages:
        identity = hashlib.sha256(f"{trace} {stage.stage}".encode()).hexdigest()[:16]
        details = {
            "stage": stage.stage,
            "waited_ms": 1000 * (stage.started - stage.received),
            "callback_ms": 1000 * stage.callback,
        }
        child = span(f"stage {stage.stage}", identity, stage.started, stage.finished, details)
        found.append({**child, "parentSpanId": root})
    return found


def _attribute(key: str, value: str | int | float) -> dict[str, Any]:
    """A key and its value; OTLP writes 64-bit integers as text."""
    if isinstance(value, str):
        return {"key": key, "value": {"stringValue": value}}
    return {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"doubleValue": value}}
