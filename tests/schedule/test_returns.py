"""When iterations come back, by what was predicted of their stages."""

from __future__ import annotations

import pytest

from longspan.schedule.geometry import Geometry
from longspan.schedule.guard import GuardState
from longspan.schedule.plan_record import PlanRecord
from longspan.schedule.returns import Returns
from longspan.schedule.span import Iteration, StageTiming

PREFILL = Geometry(prefill_rows=8, sequences=1)
DECODE = Geometry(exact_rows=2, sequences=2)


def record(geometry: Geometry, planned_at: float, *seconds: float) -> PlanRecord:
    return PlanRecord(
        iteration=Iteration(0, (), (), ()),
        geometry=geometry,
        planned_at=planned_at,
        predicted=dict(enumerate(seconds)),
        decode_seconds=0.0,
        allowance=0.0,
        prefill_seconds=0.0,
        prefill_cut=False,
        guard=GuardState.OPEN,
        streams=2,
        prompts=1,
        running=3,
        waiting=0,
    )


def timing(stage: int, received: float, finished: float) -> StageTiming:
    return StageTiming(stage, received, received, finished)


def test_rows_come_back_after_every_stage() -> None:
    pause = Returns().pause([record(DECODE, 5.0, 0.1, 0.2)], 5.1)
    assert pause is not None
    assert pause.back == pytest.approx(0.2)
    assert pause.spare == pytest.approx(0.0), "the last stage works until they are back"


def test_what_was_sent_before_is_in_the_way() -> None:
    pause = Returns().pause([record(PREFILL, 0.0, 1.0, 1.0), record(DECODE, 1.0, 0.1, 0.2)], 1.1)
    assert pause is not None
    assert pause.back == pytest.approx(2.2 - 1.1)


def test_what_was_sent_later_takes_of_the_spare_time_only() -> None:
    decode, later = record(DECODE, 0.0, 0.1, 0.1), record(PREFILL, 0.1, 0.2, 0.2)
    returns = Returns()
    for _ in range(100):
        returns.measured(3.2, [timing(0, 0.0, 0.1), timing(1, 7.0, 7.1)])
    alone, both = returns.pause([decode], 0.1), returns.pause([decode, later], 0.3)
    assert alone is not None
    assert both is not None
    assert alone.back == pytest.approx(3.1)
    assert alone.spare == pytest.approx(3.0), "all but what the first stage still has to do, and the last then has"
    assert both.back == pytest.approx(2.9)
    assert both.spare == pytest.approx(2.7)


def test_late_rows_are_expected_at_once() -> None:
    pause = Returns().pause([record(DECODE, 0.0, 0.1, 0.1)], 9.0)
    assert pause == (0.0, 0.0)


def test_without_decode_rows_nobody_waits() -> None:
    assert Returns().pause([], 0.0) is None
    assert Returns().pause([record(PREFILL, 0.0, 0.1)], 0.0) is None


def test_a_new_ring_has_other_links() -> None:
    returns = Returns()
    returns.measured(5.0, [timing(0, 0.0, 1.0)])
    returns.forget()
    pause = returns.pause([record(DECODE, 0.0, 1.0)], 0.0)
    assert pause is not None
    assert pause.back == pytest.approx(1.0)
