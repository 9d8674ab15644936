"""The one rule that decides which spans of an iteration succeeded.

A span succeeds when no stage reported it as failed and exactly its asked rows came back, each once. A missing
sample, a duplicate, or a sample for a row that was not asked fails that span's sequence and no other. A sample for
a span that the iteration does not have belongs to nobody; it is counted.
"""

from __future__ import annotations

from typing import NamedTuple

from longspan.schedule.events import FailureKind
from longspan.schedule.span import Iteration, IterationResult, Sample


class SpanFault(NamedTuple):
    """Why a span's sequence fails."""

    kind: FailureKind
    reason: str


class Outcomes(NamedTuple):
    """One entry a span: its samples in row order, or its fault. `strays`: samples and failures of unknown spans."""

    spans: list[tuple[Sample, ...] | SpanFault]
    strays: int


def outcomes(iteration: Iteration, result: IterationResult) -> Outcomes:
    """Sort a result by the spans of its iteration."""
    spans = iteration.spans
    count = len(spans)
    found: list[list[Sample]] = [[] for _ in spans]
    strays = 0
    for sample in result.samples:
        if 0 <= sample.span < count:
            found[sample.span].append(sample)
        else:
            strays += 1
    failed: dict[int, str] = {}
    for failure in result.failures:
        if 0 <= failure.span < count:
            failed.setdefault(failure.span, failure.reason)
        else:
            strays += 1
    decided: list[tuple[Sample, ...] | SpanFault] = []
    for index, (span, samples) in enumerate(zip(spans, found, strict=True)):
        if index in failed:
            decided.append(SpanFault(FailureKind.STAGE, failed[index]))
            continue
        if len(samples) > 1:
            samples.sort(key=lambda sample: sample.row)
        rows = tuple(sample.row for sample in samples)
        if rows == span.sample_rows:
            decided.append(tuple(samples))
        else:
            decided.append(
                SpanFault(
                    FailureKind.PROTOCOL,
                    f"iteration {iteration.id} span {index}: samples for rows {list(rows)} came back, "
                    f"asked were {list(span.sample_rows)}",
                )
            )
    return Outcomes(decided, strays)
