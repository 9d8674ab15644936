"""The trace of planning: one record an iteration, from which cost models can be judged afterwards.

A trace file is JSON lines, one `TraceRecord` each, in the order of completion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from longspan.errors import UsageError
from longspan.schedule.geometry import Geometry, geometry_of_shapes
from longspan.schedule.plan_record import PlanRecord
from longspan.schedule.span import CopyPrefix, Iteration, IterationResult, Phase, StageTiming


class SpanShape(msgspec.Struct, frozen=True, gc=False):
    """One span without its tokens: `rows` new rows, `sampled` of them sampled, behind `start` positions.

    epoch: of the sequence when the span was sent.
    """

    sequence: int
    slot: int
    start: int
    rows: int
    phase: Phase
    sampled: int
    epoch: int = 0


class StageTime(msgspec.Struct, frozen=True, gc=False):
    """One stage's share: seconds in its queue, of work, and of reading the residual; passes over the layers.

    received: when it came, by the stage's own clock; None in older traces. round_trip: seconds of the newest ping,
    where the stage is in another process.
    """

    stage: int
    waited: float
    worked: float
    callback: float
    sub_batches: int
    received: float | None = None
    round_trip: float | None = None


class TraceRecord(msgspec.Struct, frozen=True):
    """An iteration: its shape, what was predicted before it ran, what was measured after.

    planned_at, completed_at: seconds of the planner's clock. predicted: seconds by stage, by the model in use.
    decode_seconds, allowance: predicted for the decode rows alone, and what joined prefill was allowed to add.
    operations: how many operations it carried. copied: positions that its copy operations moved, whose time is part
        of the stages' work. samples, failures: what came back.
    useful, stale: decode and verify rows that this result brought to an end, by whether their token was committed.
    """

    iteration: int
    planned_at: float
    completed_at: float
    spans: tuple[SpanShape, ...]
    operations: int
    copied: int
    predicted: dict[int, float]
    decode_seconds: float
    allowance: float
    guard: str
    running: int
    waiting: int
    samples: int
    failures: int
    stages: tuple[StageTime, ...]
    useful: int = 0
    stale: int = 0

    @property
    def geometry(self) -> Geometry:
        """The shape of the iteration."""
        return geometry_of_shapes(
            [(span.slot, span.start, span.rows, span.phase.is_exact, span.sampled) for span in self.spans]
        )


def kind_of(spans: Iterable[SpanShape]) -> str:
    """What an iteration did: "decode" (windows too), "prefill" (replay too) or "mixed"."""
    exact = {span.phase.is_exact for span in spans}
    return "mixed" if len(exact) > 1 else "decode" if exact == {True} else "prefill"


def copied_positions(iteration: Iteration) -> int:
    """Positions that the copy operations of an iteration move."""
    return sum(operation.length for operation in iteration.operations if isinstance(operation, CopyPrefix))


class Completion(NamedTuple):
    """What a trace record is made of, kept as it is until somebody wants it.

    now: when the result was taken. useful, stale: rows that it brought to an end.
    """

    record: PlanRecord
    result: IterationResult
    now: float
    useful: int = 0
    stale: int = 0


def trace_record(completion: Completion, round_trips: Mapping[int, float] | None = None) -> TraceRecord:
    """The trace record of a completed iteration. round_trips: seconds by stage, where they are known."""
    record, result, now, useful, stale = completion
    trips = round_trips or {}
    return TraceRecord(
        iteration=record.iteration.id,
        planned_at=record.planned_at,
        completed_at=now,
        spans=tuple(
            SpanShape(
                span.sequence,
                span.slot,
                span.start,
                len(span.tokens),
                span.phase,
                len(span.sample_rows),
                span.epoch,
            )
            for span in record.iteration.spans
        ),
        operations=len(record.iteration.operations),
        copied=copied_positions(record.iteration),
        predicted=record.predicted,
        decode_seconds=record.decode_seconds,
        allowance=record.allowance,
        guard=record.guard.value,
        running=record.running,
        waiting=record.waiting,
        samples=len(result.samples),
        failures=len(result.failures),
        stages=tuple(_stage_time(timing, trips.get(timing.stage)) for timing in result.timings),
        useful=useful,
        stale=stale,
    )


def encode_trace(records: Iterable[TraceRecord]) -> bytes:
    """JSON lines of records."""
    return b"".join(msgspec.json.encode(record) + b"\n" for record in records)


def decode_trace(lines: Iterable[bytes], name: str) -> Iterator[TraceRecord]:
    """Records of JSON lines, one after the other; empty lines are passed over.

    name: of the trace, for messages. Raises UsageError when a line is not a record; the message names the line.
    """
    decoder = msgspec.json.Decoder(TraceRecord)
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield decoder.decode(line)
            except msgspec.DecodeError as error:
                raise UsageError(f"{name}, line {number}, is not a trace record: {error}") from error


def _stage_time(timing: StageTiming, round_trip: float | None) -> StageTime:
    return StageTime(
        stage=timing.stage,
        waited=timing.started - timing.received,
        worked=timing.finished - timing.started,
        callback=timing.callback,
        sub_batches=timing.sub_batches,
        received=timing.received,
        round_trip=round_trip,
    )
