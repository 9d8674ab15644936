"""The output of /v1/responses: messages, thoughts and calls, as items and as the events that build them."""

from __future__ import annotations

import secrets

import msgspec

from longspan.request import Piece
from longspan.server.formats.deltas import CallArguments, CallBegins, Content, Reasoning
from longspan.server.openai.chat_format import ChatFormat
from longspan.server.openai.logprobs import TokenEntry


class OutputText(msgspec.Struct, frozen=True):
    """What the assistant said. logprobs: of each token of the answer, when they were asked for."""

    text: str
    logprobs: tuple[TokenEntry, ...] = ()
    annotations: tuple[()] = ()
    type: str = "output_text"


class ReasoningText(msgspec.Struct, frozen=True):
    """What the model thought."""

    text: str
    type: str = "reasoning_text"


Part = OutputText | ReasoningText


class OutputMessage(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    """The assistant's message. status: "in_progress", "completed", or "incomplete" when it was cut off."""

    id: str
    status: str
    content: tuple[OutputText, ...]
    role: str = "assistant"


class OutputReasoning(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning"):
    """Thoughts. summary: there is none."""

    id: str
    status: str
    content: tuple[ReasoningText, ...]
    summary: tuple[()] = ()


class OutputCall(msgspec.Struct, frozen=True, tag_field="type", tag="function_call"):
    """A call of a function. arguments: JSON text."""

    id: str
    status: str
    call_id: str
    name: str
    arguments: str


OutputItem = OutputMessage | OutputReasoning | OutputCall


class ItemEvent(msgspec.Struct, frozen=True):
    """An item begins or is complete."""

    type: str
    sequence_number: int
    output_index: int
    item: OutputItem


class PartEvent(msgspec.Struct, frozen=True):
    """A text begins or is complete."""

    type: str
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    part: Part


class TextDeltaEvent(msgspec.Struct, frozen=True):
    """What is added to a text. logprobs: of the piece's tokens."""

    type: str
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: tuple[TokenEntry, ...]


class TextDoneEvent(msgspec.Struct, frozen=True):
    """A whole text."""

    type: str
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: tuple[TokenEntry, ...]


class ArgumentsDeltaEvent(msgspec.Struct, frozen=True):
    """What is added to a call's arguments."""

    type: str
    sequence_number: int
    item_id: str
    output_index: int
    delta: str


class ArgumentsDoneEvent(msgspec.Struct, frozen=True):
    """The whole arguments of a call."""

    type: str
    sequence_number: int
    item_id: str
    output_index: int
    name: str
    arguments: str


OutputEvent = ItemEvent | PartEvent | TextDeltaEvent | TextDoneEvent | ArgumentsDeltaEvent | ArgumentsDoneEvent


class OutputItems:
    """Reads one answer as it comes. items: those that are complete. number: of the next event."""

    def __init__(self, form: ChatFormat, first_number: int) -> None:
        self._form = form
        self._reader = form.reader()
        self._open: OutputItem | None = None
        self._parts: list[str] = []
        self._entries: list[TokenEntry] = []
        self._waiting: tuple[TokenEntry, ...] = ()
        self._space = ""
        self._events: list[OutputEvent] = []
        self.items: list[OutputItem] = []
        self.number = first_number

    def push(self, piece: Piece, entries: tuple[TokenEntry, ...]) -> list[OutputEvent]:
        """The events that a piece makes; the last one ends its item. entries: of the piece's tokens."""
        last = piece.finish_reason is not None
        self._waiting += entries
        for delta in self._reader.push(piece.text, last=last):
            if isinstance(delta, Content):
                self._text(delta.text)
            elif isinstance(delta, Reasoning):
                if not isinstance(self._open, OutputReasoning):
                    self._begin(OutputReasoning(f"rs_{secrets.token_hex(12)}", "in_progress", ()))
                self._add("response.reasoning_text.delta", delta.text)
            elif isinstance(delta, CallBegins):
                call = OutputCall(
                    f"fc_{secrets.token_hex(12)}", "in_progress", self._form.call_id(), delta.name, ""
                )
                self._begin(call)
            elif isinstance(delta, CallArguments):
                self._add("response.function_call_arguments.delta", delta.text)
        if last:
            if not self.items and self._open is None:
                # An answer without a word is still a message.
                self._begin(OutputMessage(f"msg_{secrets.token_hex(12)}", "in_progress", ()))
            self._close("incomplete" if piece.finish_reason == "length" else "completed")
        events, self._events = self._events, []
        return events

    def _text(self, text: str) -> None:
        if not isinstance(self._open, OutputMessage):
            text = self._space + text
            if self.items or self._open is not None:
                # Blank lines between calls are no message.
                self._space = "" if text.strip() else text
            if self._space:
                return
            self._begin(OutputMessage(f"msg_{secrets.token_hex(12)}", "in_progress", ()))
        self._add("response.output_text.delta", text)

    def _begin(self, item: OutputItem) -> None:
        self._close("completed")
        self._open = item
        self._emit(ItemEvent("response.output_item.added", self.number, len(self.items), item))
        if not isinstance(item, OutputCall):
            part = _part(item, "")
            self._emit(PartEvent("response.content_part.added", self.number, item.id, len(self.items), 0, part))

    def _add(self, kind: str, text: str) -> None:
        assert self._open is not None
        self._parts.append(text)
        place, name = len(self.items), self._open.id
        if isinstance(self._open, OutputCall):
            self._emit(ArgumentsDeltaEvent(kind, self.number, name, place, text))
            return
        entries: tuple[TokenEntry, ...] = ()
        if isinstance(self._open, OutputMessage):
            entries, self._waiting = self._waiting, ()
            self._entries += entries
        self._emit(TextDeltaEvent(kind, self.number, name, place, 0, text, entries))

    def _close(self, status: str) -> None:
        item, place, text = self._open, len(self.items), "".join(self._parts)
        if item is None:
            return
        if isinstance(item, OutputCall):
            kind = "response.function_call_arguments.done"
            self._emit(ArgumentsDoneEvent(kind, self.number, item.id, place, item.name, text))
            done: OutputItem = msgspec.structs.replace(item, status=status, arguments=text)
        else:
            if isinstance(item, OutputMessage):
                # Tokens that said nothing, like the end token.
                self._entries += self._waiting
                self._waiting = ()
            entries = tuple(self._entries) if isinstance(item, OutputMessage) else ()
            part = _part(item, text, entries)
            kind = "output_text" if isinstance(item, OutputMessage) else "reasoning_text"
            self._emit(TextDoneEvent(f"response.{kind}.done", self.number, item.id, place, 0, text, entries))
            self._emit(PartEvent("response.content_part.done", self.number, item.id, place, 0, part))
            done = msgspec.structs.replace(item, status=status, content=(part,))
        self._emit(ItemEvent("response.output_item.done", self.number, place, done))
        self.items.append(done)
        self._open = None
        self._parts, self._entries = [], []

    def _emit(self, event: OutputEvent) -> None:
        self._events.append(event)
        self.number += 1


def _part(item: OutputMessage | OutputReasoning, text: str, entries: tuple[TokenEntry, ...] = ()) -> Part:
    return OutputText(text, entries) if isinstance(item, OutputMessage) else ReasoningText(text)
