"""The answers of /v1/chat/completions: whole, and in chunks."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

import msgspec
from msgspec import UNSET, UnsetType

from longspan.request import Piece
from longspan.server.answers import Answers
from longspan.server.openai.answer_head import AnswerHead
from longspan.server.openai.logprobs import ChatLogprobs, TokenEntry, chat_entries
from longspan.server.openai.usage import AnswerMetrics, Usage, answer_metrics


class ChatMessage(msgspec.Struct, frozen=True):
    """What the assistant said."""

    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True):
    """One whole answer. token_ids: every committed token, on `return_token_ids`."""

    index: int
    message: ChatMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, frozen=True):
    """The whole answer."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: str = "chat.completion"
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    metrics: AnswerMetrics | UnsetType | None = UNSET


class ChatDelta(msgspec.Struct, frozen=True):
    """What a chunk adds to the message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, frozen=True):
    """What a chunk adds to a choice."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    token_ids: tuple[int, ...] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True):
    """One event of a stream."""

    id: str
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    object: str = "chat.completion.chunk"
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    metrics: AnswerMetrics | UnsetType | None = UNSET


async def whole_chat(head: AnswerHead, answers: Answers) -> bytes:
    """Wait for every choice; the JSON of the answer."""
    texts: list[list[str]] = [[] for _ in range(head.choices)]
    entries: list[list[TokenEntry]] = [[] for _ in range(head.choices)]
    tokens: list[list[int]] = [[] for _ in range(head.choices)]
    reasons = [""] * head.choices
    async with contextlib.aclosing(answers.pieces()) as pieces:
        async for index, piece in pieces:
            texts[index].append(piece.text)
            tokens[index].extend(piece.tokens)
            if head.wants_logprobs:
                entries[index].extend(chat_entries(piece, head.tokenizer))
            reasons[index] = piece.finish_reason or ""
    choices = [
        ChatChoice(
            index=index,
            message=ChatMessage("".join(texts[index])),
            finish_reason=reasons[index],
            logprobs=ChatLogprobs(entries[index]) if head.wants_logprobs else None,
            token_ids=tokens[index] if head.wants_token_ids else UNSET,
        )
        for index in range(head.choices)
    ]
    return msgspec.json.encode(
        ChatCompletion(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=choices,
            usage=head.usage(answers, sum(map(len, tokens))),
            prompt_token_ids=head.prompts[0] if head.wants_token_ids else UNSET,
            metrics=answer_metrics(answers.timings(0)) if head.wants_metrics else UNSET,
        )
    )


async def chat_events(head: AnswerHead, answers: Answers) -> AsyncGenerator[bytes, None]:
    """The JSON of each chunk: the role of every choice first, then one chunk a committed burst, then the usage."""
    encode = msgspec.json.Encoder().encode
    other_usage = head.usage_of_other_chunks
    generated = 0
    metrics: AnswerMetrics | UnsetType | None = UNSET
    began = False

    def chunk(*choices: ChunkChoice) -> ChatChunk:
        usage = head.usage(answers, generated) if head.continuous_usage else other_usage
        return ChatChunk(head.id, head.created, head.model, choices, usage=usage)

    async with contextlib.aclosing(answers.pieces()) as pieces:
        async for index, piece in pieces:
            if not began:
                began = True
                opening = chunk(
                    *(ChunkChoice(choice, ChatDelta("assistant", "")) for choice in range(head.choices))
                )
                if head.wants_token_ids:
                    opening = msgspec.structs.replace(opening, prompt_token_ids=head.prompts[0])
                yield encode(opening)
            generated += len(piece.tokens)
            if head.wants_metrics and piece.finish_reason is not None:
                metrics = answer_metrics(answers.timings(index))
            if head.says_something(piece):
                event = chunk(_chunk_choice(head, index, piece))
                if metrics is not UNSET and not head.include_usage:
                    event = msgspec.structs.replace(event, metrics=metrics)
                yield encode(event)
        if head.include_usage:
            last = ChatChunk(
                head.id, head.created, head.model, (), usage=head.usage(answers, generated), metrics=metrics
            )
            yield encode(last)


def _chunk_choice(head: AnswerHead, index: int, piece: Piece) -> ChunkChoice:
    return ChunkChoice(
        index=index,
        delta=ChatDelta(content=piece.text) if piece.text else ChatDelta(),
        logprobs=ChatLogprobs(chat_entries(piece, head.tokenizer)) if head.wants_logprobs else None,
        finish_reason=piece.finish_reason,
        token_ids=piece.tokens if head.wants_token_ids else UNSET,
    )
