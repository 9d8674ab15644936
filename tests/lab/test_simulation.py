"""The lab itself: its clock, its ring, its oracle, and that it notices a planner that errs."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.lab.costs import reference_cost, share_of, two_core_cost
from longspan.lab.oracle import Oracle, serial_answer
from longspan.lab.report import lab_row, quantile
from longspan.lab.ring import ModelledRing
from longspan.lab.simulation import LabError, Simulation
from longspan.lab.workload import Arrival, poisson_times, tokens_of
from longspan.schedule.geometry import Geometry
from longspan.schedule.limits import Limits
from longspan.schedule.planner import Planner
from longspan.schedule.policy import Policy
from longspan.schedule.span import CopyPrefix, Drop, Iteration, IterationResult, Phase, Sample, Span, Trim

LIMITS = Limits(slots=4, cells_per_slot=400, exact_rows=64, max_rows=512, chunk=63, max_waiting=4)


def simulation_of(
    arrivals: list[Arrival], *, limits: Limits = LIMITS, policy: Policy | None = None, stages: int = 1
) -> Simulation:
    ring = ModelledRing((share_of(two_core_cost, stages),) * stages, 0.01 * (stages - 1), limits.slots)
    return Simulation(Planner(limits, policy), ring, arrivals)


def test_the_reference_costs() -> None:
    assert reference_cost(Geometry(prefill_rows=100, sequences=1)) == pytest.approx(250e-6)
    assert reference_cost(Geometry(exact_rows=3, sequences=3)) == pytest.approx(160e-6)
    assert reference_cost(Geometry(exact_rows=3, prefill_rows=100, sequences=4)) == pytest.approx(360e-6)


@pytest.mark.parametrize(
    ("rows", "passes", "measured"), [(1, 1, 8.3), (4, 1, 16), (4, 4, 32), (8, 1, 26), (64, 1, 162)]
)
def test_the_two_core_costs_are_close_to_what_was_measured(rows: int, passes: int, measured: float) -> None:
    cost = two_core_cost(Geometry(exact_rows=rows, sequences=rows, sub_batches=passes))
    assert cost * 1e3 == pytest.approx(measured, rel=0.05)


def test_stages_work_in_a_pipeline() -> None:
    ring = ModelledRing((lambda geometry: 0.010, lambda geometry: 0.020), 0.005, 2)
    spans = (Span(0, 0, 0, 0, (1, 2), Phase.PREFILL, (1,)),)
    first, back = ring.run(Iteration(0, (), (), spans), 1.0)
    assert back == pytest.approx(1.0 + 0.010 + 0.005 + 0.020 + 0.005)
    assert ring.takes_work_at == pytest.approx(1.010)
    second, back = ring.run(Iteration(1, (), (), spans), 1.010)
    assert second.timings[1].started == pytest.approx(first.timings[1].finished), "strictly in order"
    assert back == pytest.approx(1.0 + 0.010 + 0.005 + 2 * 0.020 + 0.005)
    assert ring.busy == pytest.approx([0.020, 0.040])


def test_the_oracle_trims_copies_and_drops() -> None:
    oracle = Oracle(2)

    def token(iteration: Iteration) -> int:
        samples, failures = oracle.run(iteration)
        assert not failures
        return samples[0].token

    prompt = (5, 6, 7)
    first = token(Iteration(0, (), (), (Span(0, 0, 0, 0, prompt, Phase.PREFILL, (2,)),)))
    assert first == serial_answer(prompt, 1)[0]
    copied = Span(1, 1, 0, 2, (7,), Phase.PREFILL, (0,))
    assert token(Iteration(1, (CopyPrefix(0, 1, 2),), (), (copied,))) == first
    assert (oracle.held(0), oracle.held(1)) == (3, 3)
    oracle.run(Iteration(2, (Trim(0, 1), Drop(1)), (), ()))
    assert (oracle.held(0), oracle.held(1)) == (1, 0)
    _, failures = oracle.run(Iteration(3, (), (), (copied,)))
    assert failures[0].reason == "slot 1 holds 0 of 2 positions"


def test_an_answer_ends_with_an_end_token() -> None:
    answer = serial_answer((1, 2), 50)
    assert serial_answer((1, 2), 50, frozenset({answer[3]})) == answer[:4]


def test_times_are_those_of_the_modelled_ring() -> None:
    simulation = simulation_of([Arrival(at=1.0, prompt=tokens_of(1, 10), answer=3)])
    simulation.run()
    (journey,) = simulation.journeys
    prefill = two_core_cost(Geometry(0, 10, 1, 0, 0, 100, 10, 1))
    decode = two_core_cost(Geometry(1, 0, 1, 10, 10, 1, 1, 1))
    assert journey.first_token == pytest.approx(prefill)
    assert journey.gaps[0] == pytest.approx(decode)
    assert journey.tokens == serial_answer(tokens_of(1, 10), 3)
    row = lab_row(simulation, scenario="one", costs="two-cores", policy="mixed")
    assert row.makespan_ms == pytest.approx(1e3 * (journey.first_token + sum(journey.gaps)), abs=1e-3)
    assert row.iterations == 3


def test_a_full_queue_is_asked_again() -> None:
    arrivals = [Arrival(at=0.0, prompt=tokens_of(i, 30), answer=5) for i in range(20)]
    simulation = simulation_of(arrivals)
    simulation.run()
    assert len(simulation.journeys) == 20


class ForgetfulPlanner(Planner):
    """Stops planning although there is work."""

    def plan(self, now: float) -> Iteration | None:
        return None if self.statistics(now).iterations >= 2 else super().plan(now)


def test_an_empty_plan_while_work_exists_is_an_error() -> None:
    ring = ModelledRing((reference_cost,), 0.0, 4)
    planner = ForgetfulPlanner(LIMITS)
    with pytest.raises(LabError, match="plan is empty although 1 requests"):
        Simulation(planner, ring, [Arrival(at=0.0, prompt=(1, 2), answer=9)]).run()


class WrongRing(ModelledRing):
    """Answers with a wrong token once."""

    def run(self, iteration: Iteration, now: float) -> tuple[IterationResult, float]:
        result, back = super().run(iteration, now)
        if iteration.id == 3:
            samples = tuple(Sample(s.span, s.row, s.token + 1) for s in result.samples)
            result = IterationResult(result.iteration, samples, (), result.timings)
        return result, back


def test_other_tokens_than_alone_are_an_error() -> None:
    ring = WrongRing((reference_cost,), 0.0, 4)
    with pytest.raises(LabError, match="other tokens than alone"):
        Simulation(Planner(LIMITS), ring, [Arrival(at=0.0, prompt=(1, 2), answer=9)]).run()


def test_quantiles_interpolate() -> None:
    assert quantile([], 0.5) == 0.0
    assert quantile([3.0], 0.95) == 3.0
    assert quantile([4.0, 1.0, 2.0, 3.0], 0.5) == 2.5
    assert quantile([float(i) for i in range(101)], 0.95) == 95.0


def test_poisson_times_keep_the_rate() -> None:
    times = poisson_times(random.Random(1), 4000, 10.0)
    assert times == sorted(times)
    assert times[-1] == pytest.approx(400.0, rel=0.05)


def test_a_replay_that_finds_all_its_rows_cached_decodes_at_once() -> None:
    """Of two equal prompts one is preempted; when it comes back, the other has left all that it needs."""
    limits = Limits(slots=3, cells_per_slot=400, cells_total=401, exact_rows=64, max_rows=512, chunk=63)
    arrivals = [Arrival(at=0.0, prompt=tokens_of(0, 186), answer=16)] * 2
    policy = Policy(mixing=False, prefix_reuse=True, patience=0.0, joined_floor=0.0)
    simulation = simulation_of(arrivals, limits=limits, policy=policy)
    simulation.run()
    assert [len(journey.tokens) for journey in simulation.journeys] == [16, 16]
    assert sum(journey.preemptions for journey in simulation.journeys) == 1


@settings(max_examples=40, deadline=None)
@given(
    arrivals=st.lists(
        st.builds(
            Arrival,
            at=st.floats(0, 2),
            prompt=st.tuples(st.integers(0, 3), st.integers(1, 250)).map(lambda made: tokens_of(*made)),
            answer=st.integers(1, 40),
            priority=st.integers(-2, 2),
        ),
        min_size=1,
        max_size=15,
    ),
    policy=st.builds(
        Policy,
        mixing=st.booleans(),
        lanes=st.integers(1, 3),
        prefix_reuse=st.booleans(),
        patience=st.sampled_from([0.0, 0.002]),
        joined_floor=st.sampled_from([0.0, 0.008]),
    ),
    pool=st.sampled_from([None, 401, 700]),
    stages=st.integers(1, 3),
)
def test_any_arrivals_are_answered_as_alone(
    arrivals: list[Arrival], policy: Policy, pool: int | None, stages: int
) -> None:
    """Simulation.run itself raises when a plan is empty although work exists, or when a token is wrong."""
    limits = Limits(
        slots=3, cells_per_slot=400, cells_total=pool, exact_rows=64, max_rows=512, chunk=63, max_waiting=5
    )
    simulation = simulation_of(arrivals, limits=limits, policy=policy, stages=stages)
    simulation.run()
    assert len(simulation.journeys) == len(arrivals)
    for journey in simulation.journeys:
        assert len(journey.tokens) == min(journey.arrival.answer, 400 - len(journey.arrival.prompt))
