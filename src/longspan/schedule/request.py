"""What the planner is asked to run."""

from __future__ import annotations

import msgspec

from longspan.sampling.parameters import SamplingParameters

PRIORITY_RANGE = 100
"""Priorities go from -PRIORITY_RANGE (most urgent) to PRIORITY_RANGE."""


class SequenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt to continue.

    prompt: token ids, at least one. max_tokens: most tokens to generate; the answer also ends, with reason
        "length", when prompt and answer fill the cells of a slot.
    end_tokens: tokens that end the answer with reason "stop"; the end token is committed.
    sampling: rides to the last stage when the sequence takes a slot.
    priority: lower runs first, within -100 … 100.
    deadline: on the planner's clock; a sequence that was never admitted until then fails.
    cache_salt: sequences share KV only with sequences of the same salt.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    end_tokens: frozenset[int] = frozenset()
    sampling: SamplingParameters = SamplingParameters()
    priority: int = 0
    deadline: float | None = None
    cache_salt: str = ""
