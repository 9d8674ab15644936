"""What the planner counts, for metrics and for the lab."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

import msgspec

from longspan.schedule.geometry import Geometry
from longspan.schedule.guard import GuardState
from longspan.schedule.plan_record import PlanRecord
from longspan.schedule.span import Phase, Span

ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Upper borders of the histogram of rows per iteration; one more bucket is open."""

_SMOOTHING = 0.1
_LEARNING = 8
"""Iterations at the start whose predictions are not judged: the model has hardly seen any."""


class PlannerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """State and totals at one moment. Times are seconds, totals are since the start.

    kv_cells_used, kv_cells: positions claimed or cached, and all there are. cached_slots: slots kept for reuse.
    prefix_queries, prefix_hits: tokens looked up and found in cached prefixes.
    iterations, mixed_iterations, prefill_only_iterations: planned. rows_histogram: iterations by rows, in
    ROW_BUCKETS.
    decode_rows, prefill_rows, recompute_rows: rows planned. joined_prefill_rows: prefill and replay rows that ran
        beside decode rows. occupancy: rows planned over the rows that the iterations could have had.
    guard, guard_breaches, guard_suspensions: see `schedule.guard`. decode_debt: seconds that decoding is owed.
    prediction_error: smoothed relative error of the predicted duration of the slowest stage; None before any.
    oldest_wait: age of the sequence that waits longest now. longest_wait: longest wait of an admitted sequence.
    most_overtakes: of any admitted sequence. stray_results: samples and failures that belong to no span.
    finished, failed: sequences by reason and kind.
    """

    running: int
    decoding: int
    waiting: int
    in_flight: int
    slots: int
    kv_cells_used: int
    kv_cells: int
    cached_slots: int
    prefix_queries: int
    prefix_hits: int
    preemptions: int
    iterations: int
    mixed_iterations: int
    prefill_only_iterations: int
    rows_histogram: tuple[int, ...]
    decode_rows: int
    prefill_rows: int
    recompute_rows: int
    joined_prefill_rows: int
    occupancy: float
    guard: GuardState
    guard_breaches: int
    guard_suspensions: int
    decode_debt: float
    prediction_error: float | None
    oldest_wait: float
    longest_wait: float
    most_overtakes: int
    stray_results: int
    finished: dict[str, int]
    failed: dict[str, int]


class Counters:
    """Totals over iterations."""

    def __init__(self) -> None:
        self.iterations = 0
        self.mixed = 0
        self.prefill_only = 0
        self.rows_histogram = [0] * (len(ROW_BUCKETS) + 1)
        self.rows = 0
        self.decode_rows = 0
        self.prefill_rows = 0
        self.recompute_rows = 0
        self.joined_prefill_rows = 0
        self.strays = 0
        self.measurements = 0
        self.prediction_error: float | None = None

    def planned(self, geometry: Geometry, prefill: Iterable[Span]) -> None:
        """Count an iteration that goes out; `prefill`: its spans of prefill and replay."""
        rows = geometry.rows
        self.iterations += 1
        self.rows += rows
        self.rows_histogram[bisect.bisect_left(ROW_BUCKETS, rows)] += 1
        self.decode_rows += geometry.exact_rows
        if not geometry.prefill_rows:
            return
        replayed = sum(len(span.tokens) for span in prefill if span.phase is Phase.RECOMPUTE)
        self.recompute_rows += replayed
        self.prefill_rows += geometry.prefill_rows - replayed
        if geometry.mixed:
            self.mixed += 1
            self.joined_prefill_rows += geometry.prefill_rows
        else:
            self.prefill_only += 1

    def measured(self, record: PlanRecord, seconds: float) -> None:
        """Compare a prediction with what was measured."""
        predicted = max(record.predicted.values(), default=0.0)
        self.measurements += 1
        if predicted <= 0 or seconds <= 0 or self.measurements <= _LEARNING:
            return
        error = abs(predicted - seconds) / seconds
        old = error if self.prediction_error is None else self.prediction_error
        self.prediction_error = old + _SMOOTHING * (error - old)
