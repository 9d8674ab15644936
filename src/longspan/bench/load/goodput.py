"""Goodput: requests a second that were answered as quickly as was asked for."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from longspan.errors import UsageError

NAMES = ("ttft", "tpot", "e2el")


class Goal(msgspec.Struct, frozen=True):
    """The most milliseconds that one latency of a good request may take; `name` is one of NAMES."""

    name: str
    milliseconds: float


def parse_goals(texts: Sequence[str]) -> tuple[Goal, ...]:
    """Goals as in vLLM: "ttft:200 tpot:50 e2el:5000", in one text or several. Raises UsageError."""
    goals = []
    for part in " ".join(texts).split():
        name, _, number = part.partition(":")
        try:
            limit = float(number)
        except ValueError:
            limit = -1.0
        if name not in NAMES or not limit >= 0:
            raise UsageError(f"the goal {part!r} cannot be used; write NAME:MS, NAME one of {', '.join(NAMES)}")
        goals.append(Goal(name, limit))
    return tuple(goals)


def is_good(goals: Sequence[Goal], milliseconds: dict[str, float]) -> bool:
    """Whether a request met every goal. milliseconds: its latencies by name."""
    return all(milliseconds[goal.name] <= goal.milliseconds for goal in goals)
