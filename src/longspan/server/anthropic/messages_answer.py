"""The answers of /v1/messages: whole, and in events."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncGenerator

import msgspec

from longspan.model.tokenizer import Tokenizer
from longspan.request import GenerationRequest, Piece
from longspan.server.answers import Answers
from longspan.server.contract import ServedModel
from longspan.server.dialect import named_event

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


class TextBlock(msgspec.Struct, frozen=True):
    """What the assistant said."""

    text: str
    type: str = "text"
    citations: None = None


class MessageUsage(msgspec.Struct, frozen=True):
    """input_tokens: of the prompt, without those whose KV was there already; those are the cache_read ones."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class AssistantMessage(msgspec.Struct, frozen=True):
    """The whole answer, or in a stream its beginning."""

    id: str
    model: str
    content: tuple[TextBlock, ...]
    usage: MessageUsage
    stop_reason: str | None = None
    stop_sequence: str | None = None
    type: str = "message"
    role: str = "assistant"


class MessageStart(msgspec.Struct, frozen=True):
    """The first event."""

    message: AssistantMessage
    type: str = "message_start"


class BlockStart(msgspec.Struct, frozen=True):
    """A block begins, empty."""

    index: int
    content_block: TextBlock
    type: str = "content_block_start"


class TextDelta(msgspec.Struct, frozen=True):
    """What is added to a text."""

    text: str
    type: str = "text_delta"


class BlockDelta(msgspec.Struct, frozen=True):
    """Something is added to a block."""

    index: int
    delta: TextDelta
    type: str = "content_block_delta"


class BlockStop(msgspec.Struct, frozen=True):
    """A block is complete."""

    index: int
    type: str = "content_block_stop"


class Ending(msgspec.Struct, frozen=True):
    """Why the answer ended. stop_sequence: the one that ended it."""

    stop_reason: str
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True):
    """The end of the answer, with all figures."""

    delta: Ending
    usage: MessageUsage
    type: str = "message_delta"


class MessageStop(msgspec.Struct, frozen=True):
    """The last event."""

    type: str = "message_stop"


Event = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop

_encode = msgspec.json.Encoder().encode


class MessageHead(msgspec.Struct, frozen=True):
    """Identity of an answer, and what its end is told by. prompt_tokens: of the whole prompt."""

    id: str
    model: str
    tokenizer: Tokenizer
    prompt_tokens: int
    stop: tuple[str, ...]

    def usage(self, answers: Answers, generated: int) -> MessageUsage:
        """Usage after `generated` tokens; cached tokens are known at the end."""
        timings = answers.timings(0)
        cached = timings.cached_tokens if timings else 0
        return MessageUsage(self.prompt_tokens - cached, generated, cached)

    def ending(self, reason: str, text: str, tokens: list[int]) -> Ending:
        """Why an answer of this text and these tokens ended. reason: the engine's."""
        if reason == "stop" and self.stop and tokens and tokens[-1] not in self.tokenizer.end_tokens:
            # The tokens go on past the text with the stop string that was found, which the text leaves out.
            rest = self.tokenizer.decode(tokens)[len(text) :]
            found = [stop for stop in self.stop if rest.startswith(stop)]
            if found:
                return Ending("stop_sequence", found[0])
        return Ending(_STOP_REASONS[reason], None)


def message_head(model: ServedModel, request: GenerationRequest) -> MessageHead:
    """The head of the answer to one request."""
    return MessageHead(f"msg_{secrets.token_hex(12)}", model.id, model.tokenizer, len(request.prompt), request.stop)


async def whole_message(head: MessageHead, answers: Answers) -> bytes:
    """Wait for the answer; its JSON."""
    said = _Said()
    async with contextlib.aclosing(answers.pieces()) as pieces:
        async for _, piece in pieces:
            said.add(piece)
    ending = head.ending(said.reason, said.text, said.tokens)
    return _encode(
        AssistantMessage(
            head.id,
            head.model,
            (TextBlock(said.text),) if said.text else (),
            head.usage(answers, len(said.tokens)),
            ending.stop_reason,
            ending.stop_sequence,
        )
    )


async def message_events(head: MessageHead, answers: Answers) -> AsyncGenerator[bytes, None]:
    """The events of the answer, framed. The first one comes with the first token, so that errors before it are
    ordinary ones."""
    said = _Said()
    began = open_block = False
    async with contextlib.aclosing(answers.pieces()) as pieces:
        async for _, piece in pieces:
            if not began:
                began = True
                yield _event(MessageStart(AssistantMessage(head.id, head.model, (), head.usage(answers, 0))))
            said.add(piece)
            if piece.text:
                if not open_block:
                    open_block = True
                    yield _event(BlockStart(0, TextBlock("")))
                yield _event(BlockDelta(0, TextDelta(piece.text)))
    if open_block:
        yield _event(BlockStop(0))
    usage = head.usage(answers, len(said.tokens))
    yield _event(MessageDelta(head.ending(said.reason, said.text, said.tokens), usage))
    yield _event(MessageStop())


class _Said:
    """What has come so far."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self.tokens: list[int] = []
        self.reason = ""

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def add(self, piece: Piece) -> None:
        self._texts.append(piece.text)
        self.tokens.extend(piece.tokens)
        self.reason = piece.finish_reason or ""


def _event(event: Event) -> bytes:
    return named_event(event.type, _encode(event))
