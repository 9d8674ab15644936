"""The events of a streamed answer of /v1/responses."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

import msgspec

from longspan.errors import LongspanError
from longspan.server.answers import Answers
from longspan.server.dialect import named_event
from longspan.server.openai.logprobs import TokenEntry
from longspan.server.responses.response_answer import OutputMessage, OutputText, ResponseAnswer, ResponseObject


class ResponseEvent(msgspec.Struct, frozen=True):
    """The whole object changed its state."""

    type: str
    sequence_number: int
    response: ResponseObject


class ItemEvent(msgspec.Struct, frozen=True):
    """A message begins or is complete."""

    type: str
    sequence_number: int
    output_index: int
    item: OutputMessage


class PartEvent(msgspec.Struct, frozen=True):
    """A message's text begins or is complete."""

    type: str
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    part: OutputText


class DeltaEvent(msgspec.Struct, frozen=True):
    """What is added to a text."""

    type: str
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: tuple[TokenEntry, ...]


class TextEvent(msgspec.Struct, frozen=True):
    """A whole text."""

    type: str
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: tuple[TokenEntry, ...]


Event = ResponseEvent | ItemEvent | PartEvent | DeltaEvent | TextEvent

_encode = msgspec.json.Encoder().encode


async def response_events(answer: ResponseAnswer, answers: Answers) -> AsyncGenerator[bytes, None]:
    """The events, framed. The first ones come with the first token, so that errors before it are ordinary ones.

    An error afterwards is a `response.failed`.
    """
    item = answer.item_id
    number = 0
    try:
        async with contextlib.aclosing(answers.pieces()) as pieces:
            async for _, piece in pieces:
                if not number:
                    started = answer.response(answers)
                    yield _event(ResponseEvent("response.created", 0, started))
                    yield _event(ResponseEvent("response.in_progress", 1, started))
                    opening = OutputMessage(item, "in_progress", ())
                    yield _event(ItemEvent("response.output_item.added", 2, 0, opening))
                    yield _event(PartEvent("response.content_part.added", 3, item, 0, 0, OutputText("")))
                    number = 4
                entries = answer.add(piece)
                if piece.text or entries:
                    yield _event(DeltaEvent("response.output_text.delta", number, item, 0, 0, piece.text, entries))
                    number += 1
    except LongspanError as error:
        if not number:
            raise
        yield _event(ResponseEvent("response.failed", number, answer.response(answers, error)))
        return
    text = answer.text()
    yield _event(TextEvent("response.output_text.done", number, item, 0, 0, text.text, text.logprobs))
    yield _event(PartEvent("response.content_part.done", number + 1, item, 0, 0, text))
    yield _event(ItemEvent("response.output_item.done", number + 2, 0, answer.message()))
    yield _event(ResponseEvent(f"response.{answer.status}", number + 3, answer.response(answers)))


def _event(event: Event) -> bytes:
    return named_event(event.type, _encode(event))
