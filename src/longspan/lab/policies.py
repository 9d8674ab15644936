"""Policies by name, for comparisons."""

from __future__ import annotations

from longspan.errors import UsageError
from longspan.schedule.policy import Policy

POLICIES: dict[str, tuple[str, Policy]] = {
    "mixed": ("what the server does: prefill joins decode rows under a duration budget", Policy()),
    "homogeneous": (
        "the same without mixing: prefill and decode iterations alternate, decoding gets its share of time",
        Policy(mixing=False),
    ),
    "bounded": (
        "the reference without mixing: prefill and decode iterations alternate one by one, no time budget",
        Policy(mixing=False, debt_share=0.0, prefill_target=1e9, whole_rows=0),
    ),
    "arrival-order": (
        "mixed, but strictly in order of arrival and blind to cached prefixes in that order",
        Policy(patience=0.0, cache_window=1),
    ),
    "cold": ("mixed, but no prefix is ever reused", Policy(prefix_reuse=False)),
}


def policy(name: str) -> Policy:
    """A policy by name. Raises UsageError for an unknown name."""
    if name not in POLICIES:
        raise UsageError(f"there is no policy {name!r}; known are {', '.join(POLICIES)}")
    return POLICIES[name][1]
