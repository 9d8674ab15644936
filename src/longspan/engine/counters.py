"""What the engine counts."""

from __future__ import annotations

from longspan.schedule.planner import Planner
from longspan.schedule.span import Iteration
from longspan.status import EngineStatistics


class Counters:
    """Totals since the engine started. Written by the engine's thread, read by any."""

    def __init__(self) -> None:
        self.finished = 0
        self.failed = 0
        self.cancelled = 0
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.preemptions = 0
        self._iterations = 0
        self._mixed = 0
        self._rows = 0

    def planned(self, iteration: Iteration) -> None:
        """An iteration goes out."""
        self._iterations += 1
        self._rows += iteration.rows
        exact = sum(span.phase.is_exact for span in iteration.spans)
        if 0 < exact < len(iteration.spans):
            self._mixed += 1

    def statistics(self, planner: Planner | None) -> EngineStatistics:
        """The totals with the planner's state."""
        state = planner.statistics() if planner is not None else None
        return EngineStatistics(
            running=state.running if state else 0,
            waiting=state.waiting if state else 0,
            kv_usage=state.kv_usage if state else 0.0,
            slots=state.slots if state else 0,
            free_slots=state.free_slots if state else 0,
            in_flight=planner.in_flight if planner is not None else 0,
            requests_finished=self.finished,
            requests_failed=self.failed,
            requests_cancelled=self.cancelled,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
            iterations=self._iterations,
            mixed_iterations=self._mixed,
            iteration_rows=self._rows,
            preemptions=self.preemptions,
        )
