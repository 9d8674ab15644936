"""The endpoint of the Responses API."""

from __future__ import annotations

import contextlib

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from longspan.server.answers import Answers
from longspan.server.body import decode_body, read_body
from longspan.server.dialect import RESPONSES
from longspan.server.disconnect import while_connected
from longspan.server.event_stream import EventStream
from longspan.server.responses import response_request
from longspan.server.responses.response_answer import ResponseAnswer
from longspan.server.responses.response_events import response_events
from longspan.server.service import Service


class ResponsesEndpoints:
    """Answers that are complete in themselves: nothing is kept between requests."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """Where they are."""
        return [Route("/v1/responses", self.respond, methods=["POST"])]

    async def respond(self, http: Request) -> Response:
        """POST /v1/responses"""
        service = self._service
        request = decode_body(response_request.decoder, await read_body(http, service.options))
        model = service.engine.model
        generation, form = await service.worker.run(response_request.response_request, request, model)
        answer = ResponseAnswer(request, model, generation, form)
        answers = Answers(service.engine, [generation], service.metrics.requests, whole=not request.stream)
        if request.stream:
            return EventStream(response_events(answer, answers), answers, service.options, RESPONSES)
        async with answers:
            body = await while_connected(http.receive, _whole(answer, answers))
        return Response(body, media_type="application/json")


async def _whole(answer: ResponseAnswer, answers: Answers) -> bytes:
    async with contextlib.aclosing(answers.pieces()) as pieces:
        async for _, piece in pieces:
            answer.add(piece)
    return msgspec.json.encode(answer.response(answers))
