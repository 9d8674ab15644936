"""What mixing must bring: the figures of the lab, which are the same at every run."""

from __future__ import annotations

import msgspec
import pytest

from longspan.errors import UsageError
from longspan.lab.policies import POLICIES, policy
from longspan.lab.run import LabReport, run_scenario, simulate
from longspan.lab.scenarios import SCENARIOS, scenario


@pytest.fixture(scope="module", params=["representative", "stress"])
def mix(request: pytest.FixtureRequest) -> LabReport:
    return run_scenario(scenario(request.param))


def percent(report: LabReport, against: str) -> dict[str, float]:
    return next(change.percent for change in report.changes if change.against == against)


def test_staggered_prefill_gains_what_the_reference_gained() -> None:
    report = run_scenario(scenario("staggered-prefill"), ["bounded", "mixed"])
    bounded, mixed = report.rows
    # The reference's own figures for its bounded policy: 72 iterations, 1.28 spans, 2.85 % occupancy.
    assert (bounded.iterations, round(bounded.mean_batch, 2), round(bounded.occupancy, 4)) == (72, 1.28, 0.0285)
    assert mixed.makespan_ms <= 0.98 * bounded.makespan_ms
    assert mixed.requests_per_second >= 1.021 * bounded.requests_per_second
    assert mixed.p95_ttft_ms <= 0.975 * bounded.p95_ttft_ms
    assert mixed.p95_max_gap_ms <= 0.961 * bounded.p95_max_gap_ms
    assert mixed.mean_batch >= 1.125 * bounded.mean_batch


@pytest.mark.parametrize("against", ["bounded", "homogeneous"])
def test_mixing_costs_nobody_anything(mix: LabReport, against: str) -> None:
    change = percent(mix, against)
    assert change["requests_per_second"] >= -0.5
    assert change["p50_ttft_ms"] <= 5.0
    assert change["p95_ttft_ms"] <= 5.0
    assert change["p95_gap_ms"] <= 5.0
    assert change["p95_max_gap_ms"] <= 5.0
    assert change["iterations"] < 0


def test_a_warm_prefix_is_not_computed_again() -> None:
    cold, warm = run_scenario(scenario("warm-divergent")).rows
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 12 * 1024)
    assert warm.p95_ttft_ms < 0.2 * cold.p95_ttft_ms


def test_cache_aware_order_finds_what_order_of_arrival_loses() -> None:
    cold, in_order, aware = run_scenario(scenario("cache-orders")).rows
    assert in_order.cached_tokens <= cold.cached_tokens + 768
    assert aware.cached_tokens >= 8 * 768
    assert aware.makespan_ms < 0.8 * in_order.makespan_ms
    assert aware.most_overtakes <= policy("mixed").overtake_limit + 1


def test_a_run_gives_the_same_figures_every_time() -> None:
    first, second = (simulate(scenario("cold-burst"), "mixed")[0] for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in ("representative", "stress")])
@pytest.mark.parametrize(("stages", "link_delay"), [(1, 0.0), (3, 0.002)])
def test_every_scenario_runs_on_two_cores_too(name: str, stages: int, link_delay: float) -> None:
    row, simulation = simulate(scenario(name), "mixed", costs="two-cores", stages=stages, link_delay=link_delay)
    assert row.requests == len(simulation.journeys)
    assert all(record.geometry.rows < 64 for record in simulation.records)
    assert len(row.stage_busy) == stages


def test_lanes_keep_all_stages_at_work() -> None:
    burst = msgspec.structs.replace(scenario("cold-burst"), name="lanes")
    one, _ = simulate(burst, "mixed", stages=1)
    three, _ = simulate(burst, "mixed", stages=3)
    assert three.makespan_ms < one.makespan_ms
    assert min(three.stage_busy) > 0.5


def test_changes_are_in_percent_of_the_other() -> None:
    report = run_scenario(scenario("staggered-prefill"), ["homogeneous", "mixed"])
    (change,) = report.changes
    assert (change.policy, change.against) == ("mixed", "homogeneous")
    wanted = 100 * (report.rows[1].iterations / report.rows[0].iterations - 1)
    assert change.percent["iterations"] == pytest.approx(wanted, abs=1e-3)


def test_unknown_names_are_refused_with_what_there_is() -> None:
    with pytest.raises(UsageError, match=r"no scenario 'fast'; known are staggered-prefill"):
        scenario("fast")
    with pytest.raises(UsageError, match=r"no policy 'best'; known are mixed"):
        policy("best")
    with pytest.raises(UsageError, match=r"no stage costs 'gpu'; known are reference"):
        simulate(scenario("cold-burst"), "mixed", costs="gpu")
    assert {name for entry in SCENARIOS.values() for name in entry.policies} <= POLICIES.keys()
