"""Collects the planner's statistics from where they are kept."""

from __future__ import annotations

from longspan.schedule.pacing import Pacing
from longspan.schedule.roster import Roster
from longspan.schedule.statistics import Counters, PlannerStatistics

__all__ = ["PlannerStatistics", "snapshot"]


def snapshot(roster: Roster, pacing: Pacing, counters: Counters, in_flight: int, now: float) -> PlannerStatistics:
    """State and totals at this moment."""
    oldest = roster.waiting.oldest_arrival()
    limits = roster.limits
    return PlannerStatistics(
        running=roster.slots.running,
        decoding=len(roster.decoding),
        waiting=len(roster.waiting),
        in_flight=in_flight,
        slots=limits.slots,
        kv_cells_used=roster.slots.cells_used,
        kv_cells=limits.cells,
        cached_slots=roster.slots.cached_slots,
        prefix_queries=roster.prefix_queries,
        prefix_hits=roster.prefix_hits,
        preemptions=roster.preemptions,
        iterations=counters.iterations,
        mixed_iterations=counters.mixed,
        prefill_only_iterations=counters.prefill_only,
        rows_histogram=tuple(counters.rows_histogram),
        decode_rows=counters.decode_rows,
        prefill_rows=counters.prefill_rows,
        recompute_rows=counters.recompute_rows,
        joined_prefill_rows=counters.joined_prefill_rows,
        occupancy=counters.rows / (counters.iterations * limits.rows) if counters.iterations else 0.0,
        guard=pacing.guard.state(now),
        guard_breaches=pacing.guard.breaches,
        guard_suspensions=pacing.guard.suspensions,
        decode_debt=pacing.debt,
        prediction_error=counters.prediction_error,
        oldest_wait=0.0 if oldest is None else now - oldest,
        longest_wait=roster.longest_wait,
        most_overtakes=roster.most_overtakes,
        stray_results=counters.strays,
        finished={reason.value: count for reason, count in roster.finished.items()},
        failed={kind.value: count for kind, count in roster.failed.items()},
    )
