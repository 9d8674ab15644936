"""Spans, operations and iterations: the unit of planning and the unit on the wire.

Every struct here is frozen, holds plain values and encodes as a msgpack array, so the planner's plan is what the
frame carries. A change of a field here is a change of the protocol: raise `longspan.ring.frame.PROTOCOL_VERSION`.
"""

from __future__ import annotations

import enum

import msgspec

from longspan.sampling.parameters import SamplingParameters


class Phase(enum.IntEnum):
    """Why a span runs."""

    PREFILL = 0
    RECOMPUTE = 1
    """Replay of prompt and committed tokens after a preemption or a lost stage."""
    DECODE = 2
    """One row: the last committed token."""
    VERIFY = 3
    """A speculative window: the last committed token or a free token, then drafts."""

    @property
    def is_exact(self) -> bool:
        """True for rows whose iteration must stay below the exact-row limit."""
        return self in (Phase.DECODE, Phase.VERIFY)


class DraftRequest(enum.IntEnum):
    """When the last stage's MTP head should draft after a span."""

    NEVER = 0
    ON_DIVERGENCE = 1
    ALWAYS = 2


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Consecutive tokens of one sequence that one iteration runs.

    sequence: identity of the sequence, never reused while the ring lives.
    slot: KV stream on every stage. epoch: of the sequence, raised at every divergence.
    start: position of tokens[0]; authoritative. A stage whose KV of the slot is longer trims itself to `start`
        first, in the same operation; a stage whose KV is shorter fails the span.
    tokens: token ids at positions start … start + len(tokens) - 1 (for a tree: nodes in topological order).
    sample_rows: rows of this span (indices into `tokens`, ascending) whose next token the last stage samples.
    parents: for a tree, the index of each node's parent in `tokens`, -1 for the root; None for a chain.
    given: tokens of the prompt that follow the first of the `sample_rows`, as many as are given. Those rows sample
        nothing: how likely the given token was comes back instead.
    draft: whether the last stage's MTP head should draft from this span.
    """

    sequence: int
    slot: int
    epoch: int
    start: int
    tokens: tuple[int, ...]
    phase: Phase
    sample_rows: tuple[int, ...] = ()
    parents: tuple[int, ...] | None = None
    draft: DraftRequest = DraftRequest.NEVER
    given: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """One past the last position of a chain."""
        return self.start + len(self.tokens)


class Trim(msgspec.Struct, frozen=True, array_like=True, tag="trim", gc=False):
    """Keep only the first `keep` positions of a slot."""

    slot: int
    keep: int


class Drop(msgspec.Struct, frozen=True, array_like=True, tag="drop", gc=False):
    """Forget everything about a slot: its KV, its token history and its sampling state."""

    slot: int


class CopyPrefix(msgspec.Struct, frozen=True, array_like=True, tag="copy", gc=False):
    """Make the target slot hold exactly the first `length` positions of the source slot."""

    source: int
    target: int
    length: int


class CommitBranch(msgspec.Struct, frozen=True, array_like=True, tag="branch", gc=False):
    """After a tree: the accepted rows (indices into the tree span) and the position of the tree's root."""

    slot: int
    start: int
    rows: tuple[int, ...]


Operation = Trim | Drop | CopyPrefix | CommitBranch


class SlotSampling(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Sampling state of a slot, carried by the first iteration that needs it."""

    slot: int
    parameters: SamplingParameters


class Iteration(msgspec.Struct, frozen=True, array_like=True):
    """An ordered list of spans that every stage runs as one batch.

    A stage does, in this order: `operations`, `samplings`, then the spans as one batch. Spans are ordered by slot,
    and a slot appears in at most one span.
    """

    id: int
    operations: tuple[Operation, ...]
    samplings: tuple[SlotSampling, ...]
    spans: tuple[Span, ...]

    @property
    def rows(self) -> int:
        """Rows of all spans together."""
        return sum(len(span.tokens) for span in self.spans)

    @property
    def tokens(self) -> list[int]:
        """The token of every row."""
        return [token for span in self.spans for token in span.tokens]


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Natural-log probability of a sampled or given token before temperature and filters, with the best
    alternatives."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Sample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The token that the last stage sampled, or was given, after row `row` of span `span` (indices of the
    iteration).

    draft: tokens that the head expects to follow it, a chain. For a tree of drafts, parents: index of each one's
    parent in `draft`, -1 for the sampled token; chances: that all drafts up to each are right.
    """

    span: int
    row: int
    token: int
    logprob: TokenLogprob | None = None
    draft: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()


class SpanFailure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A span that a stage could not run; only its sequence fails."""

    span: int
    reason: str


class StageTiming(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One stage's share of an iteration. Times are seconds of the stage's own monotonic clock.

    received → started is the wait in the stage's queue, started → finished the operations and the compute.
    callback: seconds spent reading the residual out of the compute graph, drafting: seconds of the MTP head (both
    part of started → finished).
    sub_batches: how many passes the library made over the layers.
    """

    stage: int
    received: float
    started: float
    finished: float
    sub_batches: int = 1
    callback: float = 0.0
    drafting: float = 0.0


class IterationResult(msgspec.Struct, frozen=True, array_like=True):
    """What comes back for an iteration: samples by (span, row), failures by span, and the stages' timings."""

    iteration: int
    samples: tuple[Sample, ...] = ()
    failures: tuple[SpanFailure, ...] = ()
    timings: tuple[StageTiming, ...] = ()
