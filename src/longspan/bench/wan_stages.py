"""How near an answer comes to what the slowest stage could serve, once the ring is filled."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from longspan.schedule.trace import TraceRecord


class Filled(NamedTuple):
    """From the moment on in which the first window is back and no prompt is left to run.

    tokens_per_second: committed until the last window was back. stage_rate: rows a second of the slowest stage
    while it worked, in these windows: tokens a second, if it never waited and every row were right.
    """

    tokens_per_second: float
    stage_rate: float

    @property
    def share(self) -> float:
        """The one over the other."""
        return self.tokens_per_second / self.stage_rate


def filled(records: Sequence[TraceRecord]) -> Filled | None:
    """The figures of one run, whose iterations these are, in order; None when nothing came after the fill."""
    decoded = [record for record in records if record.geometry.exact_rows]
    if not decoded:
        return None
    prefilled = [record.completed_at for record in records if record.geometry.prefill_rows]
    begin = max([decoded[0].completed_at, *prefilled[-1:]])
    later = [record for record in decoded if record.completed_at > begin]
    if not later:
        return None
    rows = sum(record.geometry.exact_rows for record in later)
    worked: dict[int, float] = {}
    for record in later:
        for stage in record.stages:
            worked[stage.stage] = worked.get(stage.stage, 0.0) + stage.worked
    slowest = max(worked.values(), default=0.0)
    if not slowest:
        return None
    useful = sum(record.useful for record in later)
    return Filled(useful / (later[-1].completed_at - begin), rows / slowest)


def typical(runs: Sequence[Filled | None]) -> Filled | None:
    """The medians over runs."""
    known = [run for run in runs if run is not None]
    if not known:
        return None
    return Filled(*(statistics.median(values) for values in zip(*known, strict=True)))
