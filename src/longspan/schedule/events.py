"""What happened to a sequence; the engine turns events into streams, metrics and traces."""

from __future__ import annotations

import enum

import msgspec

from longspan.schedule.span import TokenLogprob


class FinishReason(enum.StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


class FailureKind(enum.StrEnum):
    """What made a sequence fail."""

    STAGE = "stage"
    """A stage could not run one of its spans."""
    PROTOCOL = "protocol"
    """A sample was missing, was there twice, or was not asked for."""
    TIMEOUT = "timeout"
    """It waited longer than the queue time-out or its deadline allows."""
    CONTEXT = "context"
    """The ring formed again with fewer cells than the sequence needs."""


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """The sequence took a slot. `cached_tokens` positions of it were already there."""

    sequence: int
    cached_tokens: int


class TokensCommitted(msgspec.Struct, frozen=True, gc=False):
    """Tokens that are final. `logprobs` is parallel to `tokens` when the sampling asks for them, else empty.

    rows: of the decode or verify span that gave them, one for free and one for each draft; 0 behind a prompt.
    """

    sequence: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    rows: int = 0


class PromptScored(msgspec.Struct, frozen=True, gc=False):
    """How likely the next tokens of the prompt were, in order from its second token on, when the sampling asks."""

    sequence: int
    logprobs: tuple[TokenLogprob, ...]


class Preempted(msgspec.Struct, frozen=True, gc=False):
    """The sequence lost its slot and waits again; what it committed stays, and is replayed later."""

    sequence: int


class Finished(msgspec.Struct, frozen=True, gc=False):
    """The answer is complete. Cancelling, or finishing from outside, makes no event."""

    sequence: int
    reason: FinishReason


class Failed(msgspec.Struct, frozen=True, gc=False):
    """The sequence ended without a complete answer."""

    sequence: int
    kind: FailureKind
    reason: str


Event = Admitted | PromptScored | TokensCommitted | Preempted | Finished | Failed
