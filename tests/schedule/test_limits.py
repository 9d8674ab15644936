"""Limits and policies that make no sense are refused with the reason."""

from __future__ import annotations

import pytest

from longspan.errors import UsageError
from longspan.schedule.limits import Limits
from longspan.schedule.policy import Policy

GOOD = {"slots": 8, "cells_per_slot": 1024, "exact_rows": 64, "max_rows": 512, "chunk": 63}


def test_what_follows_from_the_numbers() -> None:
    limits = Limits(**GOOD, token_budget=256, max_running=4)
    assert (limits.rows, limits.free_rows, limits.concurrency) == (256, 63, 4)
    assert (limits.cells, limits.longest, limits.pooled, limits.fixed_borders) == (8192, 1024, False, False)
    pooled = Limits(**GOOD, cells_total=900)
    assert (pooled.cells, pooled.longest, pooled.pooled) == (900, 900, True)
    assert not Limits(**GOOD, cells_total=1 << 30).pooled


@pytest.mark.parametrize(
    ("name", "value"),
    [("slots", 0), ("cells_per_slot", 1), ("exact_rows", 1), ("max_rows", 0), ("chunk", -1), ("max_waiting", 0)],
)
def test_too_small_a_limit_is_named(name: str, value: int) -> None:
    with pytest.raises(UsageError, match=f"limit {name} is {value}; it must be at least"):
        Limits(**{**GOOD, name: value})


def test_a_fixed_chunk_must_fit_an_iteration() -> None:
    with pytest.raises(UsageError, match="chunk is 600 rows, but an iteration takes 512"):
        Limits(**{**GOOD, "chunk": 600})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("lanes", 0, "must be at least 1"),
        ("prefill_target", 0.0, "must be above 0"),
        ("debt_share", -0.1, "must not be negative"),
        ("joined_floor", float("nan"), "must not be negative"),
    ],
)
def test_a_bad_policy_is_named(name: str, value: float, message: str) -> None:
    with pytest.raises(UsageError, match=f"policy {name} is .*{message}"):
        Policy(**{name: value})  # type: ignore[arg-type]
