"""What the planner is told: limits out of a ring's capacity, how to speculate, sequences out of requests."""

from __future__ import annotations

import msgspec

from longspan.engine.options import EngineOptions
from longspan.request import GenerationRequest
from longspan.runtime.base import Capacity
from longspan.schedule.limits import Limits
from longspan.schedule.request import SequenceRequest
from longspan.speculate.composite import ProposerMaker
from longspan.speculate.proposers import proposer_maker
from longspan.speculate.speculation import Speculation, SpeculationPolicy
from longspan.speculate.tree_speculation import TreeSpeculation


def limits_of(capacity: Capacity, *, max_waiting: int) -> Limits:
    """What a ring of this capacity can run at once."""
    return Limits(
        slots=capacity.slots,
        cells_per_slot=capacity.cells_per_slot,
        exact_rows=capacity.exact_rows,
        max_rows=capacity.max_rows,
        # Chunks below the exact-row limit cost no throughput on a CPU, and every cut of a prompt is exact.
        chunk=max(1, min(capacity.exact_rows - 1, capacity.max_rows)),
        max_waiting=max_waiting,
    )


def speculation_of(
    options: EngineOptions,
    limits: Limits,
    *,
    vocabulary: int,
    trees: bool,
    proposer: ProposerMaker | None = None,
) -> Speculation | TreeSpeculation | None:
    """What drafts, if anything shall.

    trees: of one request at a time, in the place of windows. proposer: makes what proposes; None: what the options
    name.
    """
    if trees:
        return TreeSpeculation(rows=limits.free_rows, vocabulary=vocabulary)
    if options.proposer == "none":
        return None
    return Speculation(
        SpeculationPolicy(proposer=options.proposer, width=options.width, depth=options.depth),
        proposer or proposer_maker(options.proposer),
        rows=limits.free_rows,
        vocabulary=vocabulary,
    )


def sequence_request(request: GenerationRequest, end_tokens: frozenset[int], now: float) -> SequenceRequest:
    """The request as the planner takes it. end_tokens: those that end this answer. now: the engine's clock."""
    sampling = msgspec.structs.replace(
        request.sampling,
        seed=request.seed or 0,
        prompt_length=len(request.prompt),
        suppress=tuple(sorted(end_tokens)) if request.sampling.min_tokens else request.sampling.suppress,
    )
    return SequenceRequest(
        prompt=request.prompt,
        max_tokens=request.max_tokens,
        end_tokens=end_tokens,
        sampling=sampling,
        priority=request.priority,
        deadline=None if request.deadline is None else now + request.deadline,
        cache_salt=request.cache_salt,
    )
