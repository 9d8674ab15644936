"""The answers of /v1/completions: whole, and in chunks."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from longspan.request import Piece
from longspan.server.answers import Answers
from longspan.server.openai.answer_head import AnswerHead
from longspan.server.openai.logprobs import PromptLogprobs, TextLogprobs, joined, prompt_logprobs, text_logprobs
from longspan.server.openai.usage import AnswerMetrics, Usage, answer_metrics


class CompletionChoice(msgspec.Struct, frozen=True):
    """One answer, or what a chunk adds to it.

    prompt_token_ids and token_ids: on `return_token_ids`. prompt_logprobs: when asked.
    """

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    token_ids: Sequence[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True):
    """The whole answer, or one event of a stream."""

    id: str
    created: int
    model: str
    choices: Sequence[CompletionChoice]
    object: str = "text_completion"
    usage: Usage | UnsetType | None = UNSET
    metrics: AnswerMetrics | UnsetType | None = UNSET


async def whole_completion(head: AnswerHead, answers: Answers, echoed: Sequence[str | None]) -> bytes:
    """Wait for every choice; the JSON of the answer. echoed: for each prompt what the text begins with, or None."""
    each = head.choices // len(head.prompts)
    texts = [[echoed[index // each] or ""] for index in range(head.choices)]
    parts: list[list[TextLogprobs]] = [[] for _ in range(head.choices)]
    tokens: list[list[int]] = [[] for _ in range(head.choices)]
    scores: list[PromptLogprobs | UnsetType] = [UNSET] * head.choices
    offsets = [0] * head.choices
    reasons = [""] * head.choices
    async with contextlib.aclosing(answers.pieces()) as pieces:
        async for index, piece in pieces:
            prompt = head.prompts[index // each]
            if head.prompt_alternatives is not None and not tokens[index]:
                scores[index] = prompt_logprobs(
                    prompt, piece.prompt_logprobs, head.tokenizer, head.prompt_alternatives
                )
            if head.wants_logprobs:
                echoes = echoed[index // each] is not None and not tokens[index]
                part = _logprobs(head, piece, offsets[index], prompt if echoes else ())
                offsets[index] += sum(map(len, part.tokens))
                parts[index].append(part)
            texts[index].append(piece.text)
            tokens[index].extend(piece.tokens)
            reasons[index] = piece.finish_reason or ""
    choices = [
        CompletionChoice(
            index=index,
            text="".join(texts[index]),
            logprobs=joined(parts[index]) if head.wants_logprobs else None,
            finish_reason=reasons[index],
            prompt_token_ids=head.prompts[index // each] if head.wants_token_ids else UNSET,
            token_ids=tokens[index] if head.wants_token_ids else UNSET,
            prompt_logprobs=scores[index],
        )
        for index in range(head.choices)
    ]
    return msgspec.json.encode(
        Completion(
            head.id,
            head.created,
            head.model,
            choices,
            usage=head.usage(answers, sum(map(len, tokens))),
            metrics=answer_metrics(answers.timings(0)) if head.wants_metrics else UNSET,
        )
    )


async def completion_events(
    head: AnswerHead, answers: Answers, echoed: Sequence[str | None]
) -> AsyncGenerator[bytes, None]:
    """The JSON of each chunk: one a committed burst, then the usage. echoed: as for `whole_completion`."""
    encode = msgspec.json.Encoder().encode
    each = head.choices // len(head.prompts)
    offsets = [0] * head.choices
    begun = [False] * head.choices
    generated = 0
    metrics: AnswerMetrics | UnsetType | None = UNSET
    async with contextlib.aclosing(answers.pieces()) as pieces:
        async for index, piece in pieces:
            generated += len(piece.tokens)
            if head.wants_metrics and piece.finish_reason is not None:
                metrics = answer_metrics(answers.timings(index))
            first, begun[index] = not begun[index], True
            echo = echoed[index // each] if first else None
            if not (echo or head.says_something(piece)):
                continue
            logprobs: TextLogprobs | None = None
            if head.wants_logprobs:
                prompt = head.prompts[index // each] if echo is not None else ()
                logprobs = _logprobs(head, piece, offsets[index], prompt)
                offsets[index] += sum(map(len, logprobs.tokens))
            choice = CompletionChoice(
                index=index,
                text=(echo or "") + piece.text,
                logprobs=logprobs,
                finish_reason=piece.finish_reason,
                prompt_token_ids=head.prompts[index // each] if first and head.wants_token_ids else UNSET,
                token_ids=piece.tokens if head.wants_token_ids else UNSET,
            )
            yield encode(
                Completion(
                    head.id,
                    head.created,
                    head.model,
                    (choice,),
                    usage=head.usage(answers, generated) if head.continuous_usage else head.usage_of_other_chunks,
                    metrics=UNSET if head.include_usage else metrics,
                )
            )
        if head.include_usage:
            last = Completion(
                head.id, head.created, head.model, (), usage=head.usage(answers, generated), metrics=metrics
            )
            yield encode(last)


def _logprobs(head: AnswerHead, piece: Piece, offset: int, prompt: Sequence[int]) -> TextLogprobs:
    """The log-probabilities of a piece, behind those of the prompt that its text begins with, if it does."""
    tokens = (*prompt, *piece.tokens)
    logprobs = (None, *piece.prompt_logprobs, *piece.logprobs) if prompt else piece.logprobs
    return text_logprobs(tokens, logprobs, head.tokenizer, offset, head.alternatives)
