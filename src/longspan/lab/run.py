"""Runs a scenario under a policy."""

from __future__ import annotations

from longspan.lab.costs import share_of, stage_cost
from longspan.lab.policies import policy
from longspan.lab.report import LabRow, lab_row
from longspan.lab.ring import ModelledRing
from longspan.lab.scenarios import Scenario, exact_rows_of, time_unit
from longspan.lab.simulation import Simulation
from longspan.schedule.limits import Limits
from longspan.schedule.planner import Planner


def simulate(
    scenario: Scenario, policy_name: str, *, costs: str = "reference", stages: int = 1, link_delay: float = 0.0
) -> tuple[LabRow, Simulation]:
    """Run a scenario on `stages` equal stages; link_delay: seconds a link, each way of the ring.

    With more than one stage, decodes are spread over as many lanes.
    """
    exact_rows = exact_rows_of(costs)
    limits = Limits(
        slots=scenario.slots,
        cells_per_slot=scenario.cells_per_slot,
        cells_total=scenario.cells,
        exact_rows=exact_rows,
        max_rows=1 << 16,
        token_budget=scenario.token_budget,
        chunk=min(scenario.chunk, exact_rows - 1),
        max_waiting=1 << 16,
    )
    chosen = policy(policy_name)
    if stages > 1:
        chosen = type(chosen)(
            **{**{name: getattr(chosen, name) for name in chosen.__struct_fields__}, "lanes": stages}
        )
    cost = share_of(stage_cost(costs), stages)
    ring = ModelledRing((cost,) * stages, link_delay, scenario.slots)
    simulation = Simulation(Planner(limits, chosen), ring, scenario.arrivals(time_unit(costs)))
    simulation.run()
    return lab_row(simulation, scenario=scenario.name, costs=costs, policy=policy_name), simulation
