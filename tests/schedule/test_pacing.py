"""Time turned into rows."""

from __future__ import annotations

import pytest

from longspan.schedule.geometry import Geometry
from longspan.schedule.guard import GuardState
from longspan.schedule.pacing import EFFICIENT, PROBE_SECONDS, WORTH, Pacing
from longspan.schedule.plan_record import PlanRecord
from longspan.schedule.policy import Policy
from longspan.schedule.returns import Pause
from longspan.schedule.span import Iteration, IterationResult, StageTiming

FIXED, PASS, ROW = 0.004, 0.001, 0.002
"""Seconds of a pretended stage: an iteration, a further sub-batch, a row."""


def seconds_of(geometry: Geometry) -> float:
    return FIXED + PASS * (geometry.sub_batches - 1) + ROW * geometry.rows


def decode(rows: int) -> Geometry:
    return Geometry(rows, 0, rows, 0, 0, rows, 1, 1, 0)


def trained(policy: Policy) -> Pacing:
    pacing = Pacing(policy)
    for rows in [*range(1, 60)] * 5:
        for geometry in (decode(rows), decode(rows).joined(0, 61 - rows), Geometry().joined(0, rows)):
            pacing.costs.observe(geometry, (StageTiming(0, 0.0, 0.0, seconds_of(geometry)),))
    assert pacing.costs.predict(decode(8)) == pytest.approx(seconds_of(decode(8)), rel=0.02)
    return pacing


def record(
    geometry: Geometry,
    *,
    prefill_seconds: float = 0.0,
    cut: bool = True,
    streams: int = 2,
    prompts: int = 1,
    predicted: float = 0.0,
) -> PlanRecord:
    return PlanRecord(
        iteration=Iteration(0, (), (), ()),
        geometry=geometry,
        planned_at=0.0,
        predicted={0: predicted},
        decode_seconds=0.0,
        allowance=1.0,
        prefill_seconds=prefill_seconds,
        prefill_cut=cut,
        guard=GuardState.OPEN,
        streams=streams,
        prompts=prompts,
        running=3,
        waiting=0,
    )


def took(seconds: float) -> IterationResult:
    return IterationResult(0, timings=(StageTiming(0, 0.0, 0.0, seconds),))


def test_joined_rows_fit_the_allowance_exactly() -> None:
    policy = Policy(joined_share=2.0, joined_floor=0.001, joined_ceiling=0.1)
    pacing = trained(policy)
    alone = seconds_of(decode(8))
    joining = pacing.join(decode(8), 0, 1000, 0.0)
    assert joining.allowance == pytest.approx(2 * alone, rel=0.02)
    longest = int((2 * alone - PASS) / ROW)
    assert longest - 1 <= joining.rows <= longest
    assert pacing.join(decode(8), 0, 5, 0.0).rows == 5


def test_the_ceiling_and_the_floor_bound_the_allowance() -> None:
    pacing = Pacing(Policy(joined_floor=0.008, joined_ceiling=0.1, joined_share=2.0))
    assert pacing.allowance(0.001, 0.0) == 0.008
    assert pacing.allowance(0.02, 0.0) == 0.04
    assert pacing.allowance(0.3, 0.0) == 0.1


def test_a_costly_pass_asks_for_larger_pieces() -> None:
    pacing = Pacing(Policy(joined_floor=0.008, joined_ceiling=0.1))
    assert pacing.allowance(0.001, 0.002) == EFFICIENT * 0.002


def test_while_decoding_is_owed_time_only_what_nobody_feels_may_join() -> None:
    pacing = Pacing(Policy(joined_floor=0.008))
    pacing.debt = 0.01
    assert pacing.allowance(0.05, 0.0001) == 0.008
    assert pacing.allowance(0.05, 0.01) == 0.0


def test_nothing_joins_without_mixing_or_before_anything_is_known_more_than_the_floor() -> None:
    assert trained(Policy(mixing=False)).join(decode(4), 0, 100, 0.0).rows == 0
    assert Pacing(Policy(prefill_floor=64)).join(decode(4), 0, 100, 0.0).rows == 64


def test_contended_prefill_is_halved_until_it_meets_the_target() -> None:
    pacing = trained(Policy(prefill_target=0.5, prefill_floor=64))
    assert pacing.prefill_rows(0, 2048, contended=False) == 2048
    assert pacing.prefill_rows(0, 2048, contended=True) == 128
    assert trained(Policy(prefill_target=0.01, prefill_floor=64)).prefill_rows(0, 2048, contended=True) == 64
    assert pacing.prefill_rows(0, 100, contended=True) == 100


def test_prefill_makes_debt_and_decoding_pays_it() -> None:
    pacing = Pacing(Policy(debt_share=0.5, prefill_target=0.5))
    pacing.observe(record(Geometry().joined(0, 60)), took(0.2), 0.0)
    assert pacing.debt == pytest.approx(0.1)
    pacing.observe(record(decode(4)), took(0.03), 0.0)
    assert pacing.debt == pytest.approx(0.07)
    pacing.observe(record(decode(4).joined(0, 10), prefill_seconds=0.04), took(0.06), 0.0)
    assert pacing.debt == pytest.approx(0.07 + 0.02 - 0.02)


def test_less_is_owed_to_few_streams_while_many_prompts_wait() -> None:
    def debt(streams: int, prompts: int) -> float:
        pacing = Pacing(Policy(debt_share=0.5, prefill_target=1.0))
        pacing.observe(record(Geometry().joined(0, 32), streams=streams, prompts=prompts), took(0.2), 0.0)
        return pacing.debt

    assert debt(2, 8) == pytest.approx(0.5 * 0.2 * 2 / 8)
    assert debt(2, 2) == debt(2, 1) == debt(8, 0) == pytest.approx(0.5 * 0.2)


def test_debt_is_bounded_and_credit_needs_a_want() -> None:
    pacing = Pacing(Policy(debt_share=0.5, prefill_target=0.5))
    pacing.observe(record(Geometry().joined(0, 60)), took(9.0), 0.0)
    assert pacing.debt == 0.25
    for _ in range(9):
        pacing.observe(record(decode(4), cut=False), took(0.2), 0.0)
    assert pacing.debt == 0.0
    for _ in range(9):
        pacing.observe(record(decode(4), cut=True), took(0.2), 0.0)
    assert pacing.debt == -0.25


def test_prefill_makes_no_debt_while_nobody_decodes() -> None:
    pacing = Pacing(Policy())
    pacing.observe(record(Geometry().joined(0, 60), streams=0), took(0.2), 0.0)
    assert pacing.debt == 0.0


def test_prefill_is_behind_by_a_whole_iteration() -> None:
    pacing = trained(Policy(debt_share=0.5))
    geometry = Geometry().joined(0, 60)
    assert not pacing.prefill_is_behind(geometry)
    pacing.debt = -0.5 * seconds_of(geometry) * 0.99
    assert not pacing.prefill_is_behind(geometry)
    pacing.debt = -0.5 * seconds_of(geometry) * 1.01
    assert pacing.prefill_is_behind(geometry)
    assert trained(Policy(debt_share=0.0)).prefill_is_behind(geometry)


def test_a_short_prompt_goes_first_when_its_first_token_gains_more_than_the_streams_lose() -> None:
    pacing = trained(Policy(joined_floor=1.0))
    assert pacing.short_prompt_first(decode(8), 0, 10, waited=0.0)
    assert not pacing.short_prompt_first(decode(8), 0, 10, waited=5.0), "a long wait gains little"
    assert not pacing.short_prompt_first(Geometry(), 0, 10, waited=0.0), "nothing decodes"


def test_a_short_prompt_does_not_go_first_while_decoding_is_owed_time() -> None:
    pacing = trained(Policy(joined_floor=0.001))
    assert pacing.short_prompt_first(decode(8), 0, 10, waited=0.0)
    pacing.debt = 0.01
    assert not pacing.short_prompt_first(decode(8), 0, 10, waited=0.0)


def test_a_pause_is_filled_as_far_as_nobody_feels_it_while_decoding_is_owed_time() -> None:
    pacing = trained(Policy())
    pacing.debt = 0.01
    worth = WORTH * FIXED
    assert pacing.pause_rows(decode(4), 0, 60, Pause(1.0, 0.9 * worth), 0.0) == 0
    rows = pacing.pause_rows(decode(4), 0, 60, Pause(1.0, 3 * worth), 0.0)
    assert rows == pytest.approx((3 * worth - FIXED) / ROW, abs=2)
    assert pacing.pause_rows(decode(4), 0, 60, Pause(9.0, 9.0), 0.0) == 60


def test_prefill_that_is_owed_time_does_not_wait_except_to_join() -> None:
    soon, late = Pause(0.5 * WORTH * FIXED, 0.0), Pause(2 * WORTH * FIXED, 0.0)
    mixed, apart = trained(Policy()), trained(Policy(mixing=False))
    assert mixed.pause_rows(decode(4), 0, 60, soon, 0.0) == 0
    assert mixed.pause_rows(decode(4), 0, 60, late, 0.0) == mixed.turn_rows(decode(4), 0, 60)
    assert apart.pause_rows(decode(4), 0, 60, soon, 0.0) == apart.turn_rows(decode(4), 0, 60) > 0


def test_nothing_waits_before_anything_is_known() -> None:
    pacing = Pacing(Policy())
    pacing.debt = 0.01
    assert pacing.pause_rows(decode(4), 0, 60, Pause(0.0, 0.0), 0.0) == pacing.turn_rows(decode(4), 0, 60)


def test_a_lost_ring_is_learned_anew() -> None:
    pacing = trained(Policy())
    pacing.debt = 0.1
    pacing.ring_lost()
    assert not pacing.costs.trained
    assert pacing.debt == 0.0


def costly_pass(beside: float) -> Pacing:
    """A machine on which a second pass costs `beside` seconds, and that has run enough mixed iterations to know."""
    pacing = Pacing(Policy(joined_floor=0.001, joined_ceiling=0.05, prefill_target=0.5))
    for rows in [*range(1, 60)] * 5:
        for geometry in (decode(rows), decode(rows).joined(0, 61 - rows), Geometry().joined(0, rows)):
            seconds = seconds_of(geometry) + (beside - PASS) * (geometry.sub_batches - 1)
            pacing.observe(record(geometry), took(seconds), 0.0)
    pacing.debt = 0.0
    pacing.joined(0.0)
    return pacing


def test_prefill_joins_where_that_costs_no_more_than_an_iteration_of_its_own() -> None:
    assert costly_pass(0.5 * FIXED).joining_pays(decode(8), 0, 1.0)
    assert not costly_pass(3 * FIXED).joining_pays(decode(8), 0, 1.0)


def test_joining_is_judged_only_after_it_was_measured() -> None:
    pacing = Pacing(Policy())
    assert pacing.joining_pays(decode(8), 0, 0.0)
    assert not Pacing(Policy(mixing=False)).joining_pays(decode(8), 0, 0.0)


def test_where_joining_does_not_pay_it_is_tried_again() -> None:
    pacing = costly_pass(3 * FIXED)
    assert pacing.join(decode(8), 0, 50, 1.0).rows == 0
    assert pacing.joining_pays(decode(8), 0, PROBE_SECONDS + 1.0)
    pacing.joined(PROBE_SECONDS + 1.0)
    assert not pacing.joining_pays(decode(8), 0, PROBE_SECONDS + 2.0)


def test_a_turn_of_prefill_is_as_long_as_its_fixed_cost_asks_for() -> None:
    """The piece is 16 x 4 ms, above the ceiling of 50 ms that twice the decode rows would be cut to."""
    pacing = costly_pass(3 * FIXED)
    rows = pacing.turn_rows(decode(40), 0, 60)
    assert rows == pytest.approx((EFFICIENT * FIXED - FIXED) / ROW, abs=2)
    homogeneous = trained(Policy(mixing=False, prefill_target=0.5))
    assert homogeneous.turn_rows(decode(40), 0, 60) == 60
