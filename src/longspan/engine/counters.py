"""What the engine counts besides the planner."""

from __future__ import annotations

from longspan.schedule.statistics import PlannerStatistics
from longspan.speculate.ledger import SpeculationStatistics
from longspan.status import EngineStatistics


class Counters:
    """Totals since the engine started."""

    def __init__(self) -> None:
        self.finished = 0
        self.failed = 0
        self.cancelled = 0
        self.prompt_tokens = 0
        self.generated_tokens = 0

    def statistics(self, planner: PlannerStatistics, speculation: SpeculationStatistics | None) -> EngineStatistics:
        """The totals with those of planner and speculation."""
        return EngineStatistics(
            running=planner.running,
            waiting=planner.waiting,
            kv_usage=planner.kv_cells_used / planner.kv_cells if planner.kv_cells else 0.0,
            slots=planner.slots,
            free_slots=planner.slots - planner.running,
            in_flight=planner.in_flight,
            requests_finished=self.finished,
            requests_failed=self.failed,
            requests_cancelled=self.cancelled,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
            iterations=planner.iterations,
            mixed_iterations=planner.mixed_iterations,
            iteration_rows=planner.decode_rows + planner.prefill_rows + planner.recompute_rows,
            preemptions=planner.preemptions,
            planner=planner,
            speculation=speculation,
        )
