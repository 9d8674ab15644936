"""The answers of /v1/chat/completions: whole, and in chunks."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from longspan.request import Piece
from longspan.server.answers import Answers
from longspan.server.formats.deltas import CallArguments, CallBegins, Content, Delta, Reasoning
from longspan.server.openai.answer_head import AnswerHead
from longspan.server.openai.chat_format import ChatFormat
from longspan.server.openai.logprobs import (
    ChatLogprobs,
    PromptLogprobs,
    TokenEntry,
    chat_entries,
    prompt_logprobs,
)
from longspan.server.openai.usage import AnswerMetrics, Usage, answer_metrics


class CalledFunction(msgspec.Struct, frozen=True):
    """arguments: JSON text, in a chunk a part of it. name: in a stream only where the call begins."""

    arguments: str
    name: str | UnsetType = UNSET


class MessageCall(msgspec.Struct, frozen=True):
    """A call of a tool."""

    id: str
    function: CalledFunction
    type: str = "function"


class ChatMessage(msgspec.Struct, frozen=True):
    """What the assistant said. content: null beside calls, if there is no text. annotations: there are none."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    annotations: tuple[()] = ()
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[MessageCall] | UnsetType = UNSET


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
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    metrics: AnswerMetrics | UnsetType | None = UNSET


class DeltaCall(msgspec.Struct, frozen=True):
    """What a chunk adds to a call. id and type: where the call begins."""

    index: int
    function: CalledFunction
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True):
    """What a chunk adds to the message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[DeltaCall] | UnsetType = UNSET


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


async def whole_chat(head: AnswerHead, form: ChatFormat, answers: Answers) -> bytes:
    """Wait for every choice; the JSON of the answer."""
    messages = [_Message(form) for _ in range(head.choices)]
    entries: list[list[TokenEntry]] = [[] for _ in range(head.choices)]
    tokens: list[list[int]] = [[] for _ in range(head.choices)]
    reasons = [""] * head.choices
    scores: PromptLogprobs | UnsetType = UNSET
    async with contextlib.aclosing(answers.pieces()) as pieces:
        async for index, piece in pieces:
            if head.prompt_alternatives is not None and scores is UNSET:
                scores = prompt_logprobs(
                    head.prompts[0], piece.prompt_logprobs, head.tokenizer, head.prompt_alternatives
                )
            messages[index].add(piece)
            tokens[index].extend(piece.tokens)
            if head.wants_logprobs:
                entries[index].extend(chat_entries(piece, head.tokenizer))
            reasons[index] = piece.finish_reason or ""
    choices = [
        ChatChoice(
            index=index,
            message=messages[index].whole(),
            finish_reason=messages[index].finish_reason(reasons[index]),
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
            prompt_logprobs=scores,
            metrics=answer_metrics(answers.timings(0)) if head.wants_metrics else UNSET,
        )
    )


async def chat_events(head: AnswerHead, form: ChatFormat, answers: Answers) -> AsyncGenerator[bytes, None]:
    """The JSON of each chunk: the role of every choice first, then one chunk a committed burst, then the usage."""
    encode = msgspec.json.Encoder().encode
    other_usage = head.usage_of_other_chunks
    messages = [_Message(form) for _ in range(head.choices)]
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
            delta = messages[index].delta(piece)
            if delta is not None or head.says_something(piece, text=False):
                reason = None if piece.finish_reason is None else messages[index].finish_reason(piece.finish_reason)
                event = chunk(_chunk_choice(head, index, piece, delta or ChatDelta(), reason))
                if metrics is not UNSET and not head.include_usage:
                    event = msgspec.structs.replace(event, metrics=metrics)
                yield encode(event)
        if head.include_usage:
            last = ChatChunk(
                head.id, head.created, head.model, (), usage=head.usage(answers, generated), metrics=metrics
            )
            yield encode(last)


def _chunk_choice(
    head: AnswerHead, index: int, piece: Piece, delta: ChatDelta, finish_reason: str | None
) -> ChunkChoice:
    return ChunkChoice(
        index=index,
        delta=delta,
        logprobs=ChatLogprobs(chat_entries(piece, head.tokenizer)) if head.wants_logprobs else None,
        finish_reason=finish_reason,
        token_ids=piece.tokens if head.wants_token_ids else UNSET,
    )


class _Message:
    """One choice's message, read while it comes. Either `add` and `whole`, or `delta`."""

    def __init__(self, form: ChatFormat) -> None:
        self._form = form
        self._reader = form.reader()
        self._deltas: list[Delta] = []

    def add(self, piece: Piece) -> None:
        """Keep what the piece says for `whole`."""
        self._deltas += self._reader.push(piece.text, last=piece.finish_reason is not None)

    def whole(self) -> ChatMessage:
        """All of it."""
        content, reasoning, calls = self._read(self._deltas)
        return ChatMessage(
            content if content or not calls else None,
            reasoning_content=reasoning or UNSET,
            tool_calls=[MessageCall(call.id, call.function) for call in calls if call.id is not UNSET] or UNSET,
        )

    def delta(self, piece: Piece) -> ChatDelta | None:
        """What the piece adds; None for nothing."""
        deltas = self._reader.push(piece.text, last=piece.finish_reason is not None)
        if not deltas:
            return None
        content, reasoning, calls = self._read(deltas)
        return ChatDelta(content=content or UNSET, reasoning_content=reasoning or UNSET, tool_calls=calls or UNSET)

    def finish_reason(self, reason: str) -> str:
        """Why the answer ended, in the API's words."""
        return "tool_calls" if reason == "stop" and self._reader.has_calls else reason

    def _read(self, deltas: Sequence[Delta]) -> tuple[str, str, list[DeltaCall]]:
        """Content, reasoning, and one entry for each call that the deltas tell of."""
        calls: dict[int, DeltaCall] = {}
        for delta in deltas:
            if isinstance(delta, CallBegins):
                function = CalledFunction("", delta.name)
                calls[delta.index] = DeltaCall(delta.index, function, self._form.call_id(), "function")
            elif isinstance(delta, CallArguments):
                call = calls.get(delta.index) or DeltaCall(delta.index, CalledFunction(""))
                function = CalledFunction(call.function.arguments + delta.text, call.function.name)
                calls[delta.index] = msgspec.structs.replace(call, function=function)
        content = "".join([delta.text for delta in deltas if isinstance(delta, Content)])
        reasoning = "".join([delta.text for delta in deltas if isinstance(delta, Reasoning)])
        return content, reasoning, list(calls.values())
