"""The events of a streamed answer of /v1/responses."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

import msgspec

from longspan.errors import LongspanError
from longspan.server.answers import Answers
from longspan.server.dialect import named_event
from longspan.server.responses.output_items import OutputEvent
from longspan.server.responses.response_answer import ResponseAnswer, ResponseObject


class ResponseEvent(msgspec.Struct, frozen=True):
    """The whole object changed its state."""

    type: str
    sequence_number: int
    response: ResponseObject


_encode = msgspec.json.Encoder().encode


async def response_events(answer: ResponseAnswer, answers: Answers) -> AsyncGenerator[bytes, None]:
    """The events, framed. The first ones come with the first token, so that errors before it are ordinary ones.

    An error afterwards is a `response.failed`.
    """
    began = False
    try:
        async with contextlib.aclosing(answers.pieces()) as pieces:
            async for _, piece in pieces:
                if not began:
                    began = True
                    started = answer.response(answers)
                    yield _event(ResponseEvent("response.created", 0, started))
                    yield _event(ResponseEvent("response.in_progress", 1, started))
                for event in answer.add(piece):
                    yield _event(event)
    except LongspanError as error:
        if not began:
            raise
        yield _event(ResponseEvent("response.failed", answer.output.number, answer.response(answers, error)))
        return
    yield _event(ResponseEvent(f"response.{answer.status}", answer.output.number, answer.response(answers)))


def _event(event: ResponseEvent | OutputEvent) -> bytes:
    return named_event(event.type, _encode(event))
