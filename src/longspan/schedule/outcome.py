"""The one rule that decides which spans of an iteration succeeded.

A span succeeds when no stage reported it as failed and exactly its asked rows came back, each once. A missing
sample, a duplicate, or a sample for a row that was not asked fails that span's sequence and no other. A sample for
a span that the iteration does not have belongs to nobody; it is counted.
"""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple

from longspan.schedule.events import FailureKind
from longspan.schedule.span import Iteration, IterationResult, Sample


class SpanFault(NamedTuple):
    """Why a span's sequence fails."""

    kind: FailureKind
    reason: str


Outcome = tuple[Sample, ...] | SpanFault
"""The samples of a span in row order, or its fault."""


class Outcomes(NamedTuple):
    """One outcome a span. `strays`: samples and failures of unknown spans."""

    spans: list[Outcome]
    strays: int


def outcomes(iteration: Iteration, result: IterationResult) -> Outcomes:
    """Sort a result by the spans of its iteration."""
    spans = iteration.spans
    count = len(spans)
    found: list[tuple[Sample, ...]] = [()] * count
    strays = 0
    for sample in result.samples:
        index = sample.span
        if 0 <= index < count:
            before = found[index]
            if len(before) <= len(spans[index].sample_rows):  # one too many is enough to tell
                found[index] = (*before, sample) if before else (sample,)
        else:
            strays += 1
    decided: list[Outcome] = []
    for index, (span, samples) in enumerate(zip(spans, found, strict=True)):
        asked = span.sample_rows
        if len(asked) == 1 == len(samples) and samples[0].row == asked[0]:
            decided.append(samples)
        else:
            decided.append(_sorted_or_fault(iteration, index, samples))
    for failure in result.failures:
        if 0 <= failure.span < count:
            decided[failure.span] = SpanFault(FailureKind.STAGE, failure.reason)
        else:
            strays += 1
    return Outcomes(decided, strays)


def _sorted_or_fault(iteration: Iteration, index: int, samples: tuple[Sample, ...]) -> Outcome:
    asked = iteration.spans[index].sample_rows
    ordered = tuple(sorted(samples, key=attrgetter("row")))
    rows = tuple(sample.row for sample in ordered)
    if rows == asked:
        return ordered
    return SpanFault(
        FailureKind.PROTOCOL,
        f"iteration {iteration.id} span {index}: samples for rows {list(rows)} came back, asked were {list(asked)}",
    )
