"""What an answer cost and how long it took."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from longspan.request import DraftFigures, Timings


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """cached_tokens: prompt tokens whose KV was there already."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one HTTP request; a prompt counts once, however many choices were asked for."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class SpeculativeDecoding(msgspec.Struct, frozen=True):
    """What became of the drafts of one answer.

    mean_acceptance_length: tokens of a traversal of the ring. acceptance_histogram: traversals by accepted drafts,
    from 0. num_spec_steps: traversals.
    """

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: tuple[int, ...]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int


class AnswerMetrics(msgspec.Struct, frozen=True):
    """How one answer went, on `return_metrics`. Milliseconds, measured in the engine.

    time_to_first_token_ms: from arrival, queue included. generation_time_ms: from the first token to the last.
    mean_itl_ms: generation time over the tokens after the first. speculative_decoding: where drafts were sent.
    """

    time_to_first_token_ms: float
    generation_time_ms: float
    queue_time_ms: float
    mean_itl_ms: float
    tokens_per_second: float
    speculative_decoding: SpeculativeDecoding | UnsetType = UNSET


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> Usage:
    """Usage with its total."""
    return Usage(
        prompt_tokens, completion_tokens, prompt_tokens + completion_tokens, PromptTokensDetails(cached_tokens)
    )


def answer_metrics(timings: Timings | None) -> AnswerMetrics | None:
    """The metrics block of a finished answer."""
    if timings is None:
        return None
    later_tokens = max(timings.generated_tokens - 1, 1)
    return AnswerMetrics(
        time_to_first_token_ms=timings.time_to_first_token_seconds * 1000,
        generation_time_ms=timings.generation_seconds * 1000,
        queue_time_ms=timings.queue_seconds * 1000,
        mean_itl_ms=timings.generation_seconds * 1000 / later_tokens,
        tokens_per_second=timings.tokens_per_second,
        speculative_decoding=UNSET if timings.drafts is None else _of_drafts(timings.drafts),
    )


def _of_drafts(drafts: DraftFigures) -> SpeculativeDecoding:
    return SpeculativeDecoding(
        mean_acceptance_length=1 + drafts.accepted / drafts.windows,
        draft_acceptance_rate=drafts.accepted / drafts.drafts,
        acceptance_histogram=drafts.histogram,
        num_spec_steps=drafts.windows,
        num_accepted_draft_tokens=drafts.accepted,
        num_draft_tokens=drafts.drafts,
    )
