"""The content of an answer of /v1/messages: text, thoughts and calls as blocks, and the events that build them."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from longspan.request import Piece
from longspan.server.formats.deltas import CallArguments, CallBegins, Content, Delta, Reasoning
from longspan.server.openai.chat_format import ChatFormat

UNFINISHED = "unfinished_arguments"
"""Where the arguments of a call stand that was cut off before they were JSON."""


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """What the assistant said."""

    text: str
    citations: None = None


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """What the model thought. signature: nothing is signed here."""

    thinking: str
    signature: str = ""


class Caller(msgspec.Struct, frozen=True):
    """Who calls a tool: always the model itself."""

    type: str = "direct"


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]
    caller: Caller = Caller()


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock


class TextDelta(msgspec.Struct, frozen=True):
    """What is added to a text."""

    text: str
    type: str = "text_delta"


class ThinkingDelta(msgspec.Struct, frozen=True):
    """What is added to thoughts."""

    thinking: str
    type: str = "thinking_delta"


class InputDelta(msgspec.Struct, frozen=True):
    """What is added to the JSON text of a call's input."""

    partial_json: str
    type: str = "input_json_delta"


class BlockStart(msgspec.Struct, frozen=True):
    """A block begins, empty."""

    index: int
    content_block: ContentBlock
    type: str = "content_block_start"


class BlockDelta(msgspec.Struct, frozen=True):
    """Something is added to a block."""

    index: int
    delta: TextDelta | ThinkingDelta | InputDelta
    type: str = "content_block_delta"


class BlockStop(msgspec.Struct, frozen=True):
    """A block is complete."""

    index: int
    type: str = "content_block_stop"


BlockEvent = BlockStart | BlockDelta | BlockStop


class MessageBlocks:
    """Reads one answer as it comes. blocks: those that are complete."""

    def __init__(self, form: ChatFormat) -> None:
        self._form = form
        self._reader = form.reader()
        self._open: ContentBlock | None = None
        self._parts: list[str] = []
        self._space = ""
        self.blocks: list[ContentBlock] = []

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun."""
        return self._reader.has_calls

    def push(self, piece: Piece) -> list[BlockEvent]:
        """The events that a piece makes; the last one ends its block."""
        last = piece.finish_reason is not None
        events: list[BlockEvent] = []
        for delta in self._reader.push(piece.text, last=last):
            self._take(delta, events)
        if last:
            self._close(events)
        return events

    def _take(self, delta: Delta, events: list[BlockEvent]) -> None:
        if isinstance(delta, Content):
            self._text(delta.text, events)
        elif isinstance(delta, Reasoning):
            if not isinstance(self._open, ThinkingBlock):
                self._begin(ThinkingBlock(""), events)
            self._add(delta.text, ThinkingDelta(delta.text), events)
        elif isinstance(delta, CallBegins):
            self._begin(ToolUseBlock(f"toolu_{secrets.token_hex(12)}", delta.name, {}), events)
        elif isinstance(delta, CallArguments):
            self._add(delta.text, InputDelta(delta.text), events)

    def _text(self, text: str, events: list[BlockEvent]) -> None:
        if not isinstance(self._open, TextBlock):
            text = self._space + text
            if self.blocks or self._open is not None:
                # Blank lines between calls are no answer.
                self._space = "" if text.strip() else text
            if self._space or not text:
                return
            self._begin(TextBlock(""), events)
        self._add(text, TextDelta(text), events)

    def _begin(self, block: ContentBlock, events: list[BlockEvent]) -> None:
        self._close(events)
        self._open = block
        events.append(BlockStart(len(self.blocks), block))

    def _add(self, text: str, delta: TextDelta | ThinkingDelta | InputDelta, events: list[BlockEvent]) -> None:
        self._parts.append(text)
        events.append(BlockDelta(len(self.blocks), delta))

    def _close(self, events: list[BlockEvent]) -> None:
        if self._open is None:
            return
        events.append(BlockStop(len(self.blocks)))
        text = "".join(self._parts)
        if isinstance(self._open, TextBlock):
            self.blocks.append(TextBlock(text))
        elif isinstance(self._open, ThinkingBlock):
            self.blocks.append(ThinkingBlock(text))
        else:
            self.blocks.append(ToolUseBlock(self._open.id, self._open.name, _input_of(text)))
        self._open = None
        self._parts = []


def _input_of(arguments: str) -> dict[str, Any]:
    try:
        value: object = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {UNFINISHED: arguments}
