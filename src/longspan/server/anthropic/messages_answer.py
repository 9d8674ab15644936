"""The answers of /v1/messages: whole, and in events."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncGenerator

import msgspec

from longspan.model.tokenizer import Tokenizer
from longspan.request import GenerationRequest, Piece
from longspan.server.answers import Answers
from longspan.server.anthropic.message_blocks import BlockEvent, ContentBlock, MessageBlocks
from longspan.server.contract import ServedModel
from longspan.server.dialect import named_event
from longspan.server.openai.chat_format import ChatFormat

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


class MessageUsage(msgspec.Struct, frozen=True):
    """input_tokens: of the prompt, without those whose KV was there already; those are the cache_read ones.

    What is null is not counted here.
    """

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_creation: None = None
    inference_geo: None = None
    output_tokens_details: None = None
    server_tool_use: None = None
    service_tier: str = "standard"


class AssistantMessage(msgspec.Struct, frozen=True):
    """The whole answer, or in a stream its beginning."""

    id: str
    model: str
    content: tuple[ContentBlock, ...]
    usage: MessageUsage
    stop_reason: str | None = None
    stop_sequence: str | None = None
    type: str = "message"
    role: str = "assistant"
    stop_details: None = None
    container: None = None


class MessageStart(msgspec.Struct, frozen=True):
    """The first event."""

    message: AssistantMessage
    type: str = "message_start"


class Ending(msgspec.Struct, frozen=True):
    """Why the answer ended. stop_sequence: the one that ended it."""

    stop_reason: str
    stop_sequence: str | None
    stop_details: None = None
    container: None = None


class MessageDelta(msgspec.Struct, frozen=True):
    """The end of the answer, with all figures."""

    delta: Ending
    usage: MessageUsage
    type: str = "message_delta"


class MessageStop(msgspec.Struct, frozen=True):
    """The last event."""

    type: str = "message_stop"


Event = MessageStart | BlockEvent | MessageDelta | MessageStop

_encode = msgspec.json.Encoder().encode


class MessageHead(msgspec.Struct, frozen=True):
    """Identity of an answer, and what its end is told by. prompt_tokens: of the whole prompt."""

    id: str
    model: str
    tokenizer: Tokenizer
    form: ChatFormat
    prompt_tokens: int
    stop: tuple[str, ...]
    write_special: bool

    def usage(self, answers: Answers, generated: int) -> MessageUsage:
        """Usage after `generated` tokens; cached tokens are known at the end."""
        timings = answers.timings(0)
        cached = timings.cached_tokens if timings else 0
        return MessageUsage(self.prompt_tokens - cached, generated, cached)


def message_head(model: ServedModel, request: GenerationRequest, form: ChatFormat) -> MessageHead:
    """The head of the answer to one request."""
    return MessageHead(
        f"msg_{secrets.token_hex(12)}",
        model.id,
        model.tokenizer,
        form,
        len(request.prompt),
        request.stop,
        request.write_special,
    )


async def whole_message(head: MessageHead, answers: Answers) -> bytes:
    """Wait for the answer; its JSON."""
    said = _Said(head)
    async with contextlib.aclosing(answers.pieces()) as pieces:
        async for _, piece in pieces:
            said.add(piece)
    ending = said.ending()
    return _encode(
        AssistantMessage(
            head.id,
            head.model,
            tuple(said.blocks.blocks),
            head.usage(answers, len(said.tokens)),
            ending.stop_reason,
            ending.stop_sequence,
        )
    )


async def message_events(head: MessageHead, answers: Answers) -> AsyncGenerator[bytes, None]:
    """The events of the answer, framed. The first one comes with the first token, so that errors before it are
    ordinary ones."""
    said = _Said(head)
    began = False
    async with contextlib.aclosing(answers.pieces()) as pieces:
        async for _, piece in pieces:
            if not began:
                began = True
                yield _event(MessageStart(AssistantMessage(head.id, head.model, (), head.usage(answers, 0))))
            for event in said.add(piece):
                yield _event(event)
    yield _event(MessageDelta(said.ending(), head.usage(answers, len(said.tokens))))
    yield _event(MessageStop())


class _Said:
    """What has come so far."""

    def __init__(self, head: MessageHead) -> None:
        self._head = head
        self._texts: list[str] = []
        self._reason = ""
        self.blocks = MessageBlocks(head.form)
        self.tokens: list[int] = []

    def add(self, piece: Piece) -> list[BlockEvent]:
        """Take one more piece; gives the events that it makes."""
        self._texts.append(piece.text)
        self.tokens.extend(piece.tokens)
        self._reason = piece.finish_reason or ""
        return self.blocks.push(piece)

    def ending(self) -> Ending:
        """Why the answer ended."""
        head, tokens = self._head, self.tokens
        if self._reason == "stop" and head.stop and tokens and tokens[-1] not in head.tokenizer.end_tokens:
            # The tokens go on past the text with the stop string that was found, which the text leaves out.
            rest = head.tokenizer.decode(tokens, special=head.write_special)[len("".join(self._texts)) :]
            found = [stop for stop in head.stop if rest.startswith(stop)]
            if found:
                return Ending("stop_sequence", found[0])
        if self._reason == "stop" and self.blocks.has_calls:
            return Ending("tool_use", None)
        return Ending(_STOP_REASONS[self._reason], None)


def _event(event: Event) -> bytes:
    return named_event(event.type, _encode(event))
