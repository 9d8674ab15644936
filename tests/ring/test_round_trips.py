"""Whether the round trip of a live link is still the one that the ring formed with."""

from __future__ import annotations

import random

import pytest

from longspan.ring.round_trips import FIRST, RECENT, RoundTrips


def formed(seconds: float) -> RoundTrips:
    trips = RoundTrips()
    assert not any(trips.note(seconds) for _ in range(FIRST + RECENT))
    return trips


@pytest.mark.parametrize(("before", "after"), [(2.6, 0.03), (0.01, 0.2)], ids=["was slow", "is slow"])
def test_a_link_that_has_become_another_is_told_once_and_so_is_its_return(before: float, after: float) -> None:
    trips = formed(before)
    told = [trips.note(after) for _ in range(3 * RECENT)]
    assert told.count(True) == 1
    assert told.index(True) >= RECENT // 2, "some pings are no news"
    assert f"is {after * 1000:.0f} ms, and was {before * 1000:.0f} ms" in trips.remark
    assert [trips.note(before) for _ in range(3 * RECENT)].count(True) == 1
    assert trips.remark == ""


def test_jitter_and_a_jump_of_some_seconds_are_no_news() -> None:
    chance = random.Random(1)
    trips = formed(0.05)
    for number in range(1000):
        jump = number % 50 < RECENT // 2
        assert not trips.note(3.0 if jump else chance.uniform(0.03, 0.1))


def test_a_link_at_the_limit_is_not_news_every_second() -> None:
    trips = formed(0.05)
    limit = 2 * 0.05 + 0.02
    told = [trips.note(limit + (0.01 if number // RECENT % 2 else -0.01)) for number in range(20 * RECENT)]
    assert told.count(True) == 1


def test_microseconds_are_no_news() -> None:
    trips = formed(0.0001)
    assert not any(trips.note(0.015) for _ in range(5 * RECENT))
