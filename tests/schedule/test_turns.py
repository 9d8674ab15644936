"""Who has the next iteration, over a ring of two stages in virtual time."""

from __future__ import annotations

import pytest

from longspan.lab.costs import share_of, two_core_cost
from longspan.lab.ring import ModelledRing
from longspan.lab.simulation import Simulation
from longspan.lab.workload import Arrival, tokens_of
from longspan.schedule.limits import Limits
from longspan.schedule.planner import Planner
from longspan.schedule.policy import Policy

STAGES = 2
ARRIVAL = 2.0


def long_prompt_beside_streams(policy: Policy, link: float) -> Simulation:
    """Four streams decode on two lanes; then a prompt of 1,200 tokens arrives."""
    limits = Limits(slots=5, cells_per_slot=1400, exact_rows=64, max_rows=512, chunk=63)
    ring = ModelledRing((share_of(two_core_cost, STAGES),) * STAGES, link, limits.slots)
    streams = [Arrival(at=0.0, prompt=tokens_of(seed, 10), answer=600) for seed in range(4)]
    prompt = Arrival(at=ARRIVAL, prompt=tokens_of(9, 1200), answer=1)
    simulation = Simulation(Planner(limits, policy), ring, [*streams, prompt])
    simulation.run()
    return simulation


def seconds_beside_prompt(simulation: Simulation) -> tuple[float, float]:
    """Seconds of the slower stage that went to decode rows and to prefill until the prompt had its first token."""
    decode = prefill = 0.0
    for record in simulation.records:
        if record.planned_at < ARRIVAL or record.completed_at > simulation.journeys[-1].token_times[0]:
            continue
        seconds = max(stage.worked for stage in record.stages)
        joined = min(seconds, record.geometry.prefill_rows / record.geometry.rows * seconds)
        decode += seconds - joined
        prefill += joined
    return decode, prefill


@pytest.mark.parametrize("mixing", [False, True])
def test_streams_get_what_they_are_owed_although_their_rows_are_on_their_way(mixing: bool) -> None:
    policy = Policy(mixing=mixing, lanes=STAGES)
    decode, prefill = seconds_beside_prompt(long_prompt_beside_streams(policy, link=0.001))
    assert decode > 0.8 * policy.debt_share * prefill


@pytest.mark.parametrize("mixing", [False, True])
def test_prefill_fills_the_time_that_the_links_take(mixing: bool) -> None:
    simulation = long_prompt_beside_streams(Policy(mixing=mixing, lanes=STAGES), link=0.1)
    first_token = simulation.journeys[-1].first_token
    _, prefill = seconds_beside_prompt(simulation)
    assert prefill > 0.5 * first_token


def test_gaps_are_shorter_where_prefill_joins() -> None:
    gaps = {}
    for mixing in (False, True):
        simulation = long_prompt_beside_streams(Policy(mixing=mixing, lanes=STAGES), link=0.001)
        gaps[mixing] = max(max(journey.gaps) for journey in simulation.journeys[:4])
    assert gaps[True] <= gaps[False]
