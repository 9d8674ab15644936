"""Runs a scenario under policies, and compares them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from longspan.lab.costs import share_of, stage_model
from longspan.lab.policies import policy
from longspan.lab.report import LabRow, lab_row
from longspan.lab.ring import ModelledRing
from longspan.lab.scenarios import Scenario
from longspan.lab.simulation import Simulation
from longspan.schedule.limits import Limits
from longspan.schedule.planner import Planner

_COMPARED = (
    "makespan_ms",
    "requests_per_second",
    "p50_ttft_ms",
    "p95_ttft_ms",
    "p95_gap_ms",
    "p95_max_gap_ms",
    "mean_batch",
    "iterations",
)


class LabChange(msgspec.Struct, frozen=True):
    """How one policy differs from another, in percent of the other's figure."""

    policy: str
    against: str
    percent: dict[str, float]


class LabReport(msgspec.Struct, frozen=True):
    """A scenario under several policies; the last one is compared with each of the others."""

    scenario: str
    about: str
    costs: str
    stages: int
    link_delay_ms: float
    rows: list[LabRow]
    changes: list[LabChange]


def simulate(
    scenario: Scenario, policy_name: str, *, costs: str = "reference", stages: int = 1, link_delay: float = 0.0
) -> tuple[LabRow, Simulation]:
    """Run a scenario on `stages` equal stages; link_delay: seconds from one stage to the next, and back.

    Decodes are spread over as many lanes as there are stages. Raises LabError when the planner breaks a rule.
    """
    model = stage_model(costs)
    limits = Limits(
        slots=scenario.slots,
        cells_per_slot=scenario.cells_per_slot,
        cells_total=scenario.cells,
        exact_rows=model.exact_rows,
        max_rows=1 << 16,
        token_budget=scenario.token_budget,
        chunk=min(scenario.chunk, model.exact_rows - 1),
        max_waiting=1 << 16,
    )
    planner = Planner(limits, msgspec.structs.replace(policy(policy_name), lanes=stages))
    ring = ModelledRing((share_of(model.cost, stages),) * stages, link_delay, scenario.slots)
    simulation = Simulation(planner, ring, scenario.arrivals(model.time_unit))
    simulation.run()
    return lab_row(simulation, scenario=scenario.name, costs=costs, policy=policy_name), simulation


def run_scenario(
    scenario: Scenario,
    policies: Sequence[str] = (),
    *,
    costs: str = "reference",
    stages: int = 1,
    link_delay: float = 0.0,
) -> LabReport:
    """Run a scenario under `policies`, or under its own."""
    names = policies or scenario.policies
    rows = [simulate(scenario, name, costs=costs, stages=stages, link_delay=link_delay)[0] for name in names]
    return LabReport(
        scenario=scenario.name,
        about=scenario.about,
        costs=costs,
        stages=stages,
        link_delay_ms=link_delay * 1e3,
        rows=rows,
        changes=[_change(rows[-1], row) for row in rows[:-1]],
    )


def _change(row: LabRow, against: LabRow) -> LabChange:
    percent = {}
    for name in _COMPARED:
        old, new = getattr(against, name), getattr(row, name)
        percent[name] = round(100.0 * (new / old - 1.0), 3) if old else 0.0
    return LabChange(row.policy, against.policy, percent)
