"""What every chunk of an answer has in common."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from longspan.model.tokenizer import Tokenizer
from longspan.request import GenerationRequest, Piece
from longspan.server.answers import Answers
from longspan.server.contract import ServedModel
from longspan.server.openai.fields import GenerationFields
from longspan.server.openai.usage import Usage, usage


class AnswerHead(msgspec.Struct, frozen=True):
    """Identity of an answer, and what was asked to be in it.

    prompts: one tuple of token ids for each prompt. choices: over all prompts.
    alternatives: that come with the log-probability of a token. prompt_alternatives: with that of a token of the
    prompt; None: they are not asked for.
    """

    id: str
    created: int
    model: str
    tokenizer: Tokenizer
    prompts: tuple[tuple[int, ...], ...]
    choices: int
    wants_logprobs: bool
    alternatives: int
    prompt_alternatives: int | None
    wants_token_ids: bool
    wants_metrics: bool
    include_usage: bool
    continuous_usage: bool

    @property
    def usage_of_other_chunks(self) -> UnsetType | None:
        """`usage` of the chunks that tell none: null when the last chunk will tell it, else not there."""
        return None if self.include_usage else UNSET

    def usage(self, answers: Answers, generated: int) -> Usage:
        """Usage after `generated` tokens; cached tokens are known for choices that have finished."""
        timings = [answers.timings(index) for index in range(self.choices)]
        cached = [timing.cached_tokens if timing else 0 for timing in timings]
        # Choices of one prompt: it counts once, with what the first of them found cached.
        each = self.choices // len(self.prompts)
        return usage(sum(map(len, self.prompts)), generated, sum(cached[::each]))

    def says_something(self, piece: Piece, *, text: bool = True) -> bool:
        """Whether a piece is worth an event: one whose text is held back may have nothing to tell.

        text: whether its text alone makes it worth one.
        """
        if text and piece.text:
            return True
        return bool(piece.finish_reason or self.wants_logprobs or self.wants_token_ids or self.continuous_usage)


def answer_head(
    prefix: str, fields: GenerationFields, model: ServedModel, requests: Sequence[GenerationRequest]
) -> AnswerHead:
    """The head for the requests of one body, `n` of them for each prompt. prefix: of the id, like "chatcmpl-"."""
    options = fields.stream_options
    return AnswerHead(
        id=prefix + (fields.request_id or secrets.token_hex(12)),
        created=int(time.time()),
        model=model.id,
        tokenizer=model.tokenizer,
        prompts=tuple(request.prompt for request in requests[:: fields.n or 1]),
        choices=len(requests),
        wants_logprobs=requests[0].sampling.logprobs >= 0,
        alternatives=requests[0].sampling.logprobs,
        prompt_alternatives=fields.prompt_logprobs,
        wants_token_ids=bool(fields.return_token_ids),
        wants_metrics=bool(fields.return_metrics),
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.include_usage and options.continuous_usage_stats),
    )
