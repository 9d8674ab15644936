"""The guard suspends mixing when it hurts, and always tries again."""

from __future__ import annotations

from longspan.schedule.guard import GuardState, MixGuard
from longspan.schedule.policy import Policy

POLICY = Policy(guard_tolerance=0.5, guard_breaches=2, guard_pause=1.0, guard_pause_limit=4.0)


def breach(guard: MixGuard, now: float) -> None:
    guard.mixed_planned(now)
    guard.mixed_observed(4, predicted=0.01, allowance=0.01, seconds=0.2, now=now)


def keep(guard: MixGuard, now: float) -> None:
    guard.mixed_planned(now)
    guard.mixed_observed(4, predicted=0.01, allowance=0.01, seconds=0.02, now=now)


def test_one_breach_is_noise_two_suspend() -> None:
    guard = MixGuard(POLICY)
    breach(guard, 0.0)
    keep(guard, 0.1)
    breach(guard, 0.2)
    assert guard.state(0.2) is GuardState.OPEN
    breach(guard, 0.3)
    assert guard.state(0.3) is GuardState.SUSPENDED
    assert not guard.allows(1.2)
    assert (guard.breaches, guard.suspensions) == (3, 1)


def test_a_suspended_guard_probes_one_at_a_time_and_opens_again() -> None:
    guard = MixGuard(POLICY)
    breach(guard, 0.0)
    breach(guard, 0.0)
    assert guard.state(1.0) is GuardState.PROBING
    assert guard.allows(1.0)
    guard.mixed_planned(1.0)
    assert not guard.allows(1.1), "one probe in flight is enough"
    guard.mixed_observed(4, predicted=0.01, allowance=0.01, seconds=0.02, now=1.2)
    assert guard.state(1.2) is GuardState.OPEN


def test_the_pause_doubles_up_to_a_limit_and_starts_small_again_after_success() -> None:
    guard = MixGuard(POLICY)
    breach(guard, 0.0)
    breach(guard, 0.0)
    now = 1.0
    pauses = []
    for _ in range(4):
        breach(guard, now)
        start = now
        while guard.state(now) is GuardState.SUSPENDED:
            now += 0.5
        pauses.append(now - start)
    assert pauses == [2.0, 4.0, 4.0, 4.0]
    keep(guard, now)
    breach(guard, now)
    breach(guard, now)
    assert guard.state(now + 1.0) is GuardState.PROBING


def test_what_is_in_flight_when_mixing_is_suspended_does_not_lengthen_the_pause() -> None:
    guard = MixGuard(POLICY)
    for _ in range(4):
        breach(guard, 0.0)
    assert guard.suspensions == 1
    assert guard.state(1.0) is GuardState.PROBING


def test_measured_decode_time_counts_when_it_is_more_than_predicted() -> None:
    guard = MixGuard(POLICY)
    assert guard.decode_seconds(4) is None
    guard.decode_observed(4, 0.1)
    guard.decode_observed(4, 0.2)
    assert guard.decode_seconds(4) == 0.125
    for _ in range(3):
        breach(guard, 0.0)  # 0.2 s is within (0.125 + 0.01) x 1.5
    assert guard.breaches == 0


def test_a_probe_that_is_lost_with_the_ring_is_sent_again() -> None:
    guard = MixGuard(POLICY)
    breach(guard, 0.0)
    breach(guard, 0.0)
    guard.mixed_planned(1.0)
    assert not guard.allows(1.0)
    guard.ring_lost()
    assert guard.allows(1.0)
