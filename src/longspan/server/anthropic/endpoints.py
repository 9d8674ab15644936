"""The endpoints of the Anthropic API."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from longspan.server.answers import Answers
from longspan.server.anthropic import messages_request
from longspan.server.anthropic.messages_answer import message_events, message_head, whole_message
from longspan.server.body import decode_body, read_body
from longspan.server.dialect import ANTHROPIC
from longspan.server.disconnect import while_connected
from longspan.server.event_stream import EventStream
from longspan.server.service import Service


class TokenCount(msgspec.Struct, frozen=True):
    """Tokens of a prompt, as the chat template makes it."""

    input_tokens: int


class AnthropicEndpoints:
    """Messages, and counting their tokens."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """Where they are."""
        return [
            Route("/v1/messages", self.messages, methods=["POST"]),
            Route("/v1/messages/count_tokens", self.count_tokens, methods=["POST"]),
        ]

    async def messages(self, http: Request) -> Response:
        """POST /v1/messages"""
        service = self._service
        request = decode_body(messages_request.decoder, await read_body(http, service.options))
        model = service.engine.model
        generation, form = await service.worker.run(messages_request.message_request, request, model)
        head = message_head(model, generation, form)
        answers = Answers(service.engine, [generation], service.metrics.requests, whole=not request.stream)
        if request.stream:
            return EventStream(message_events(head, answers), answers, service.options, ANTHROPIC)
        async with answers:
            body = await while_connected(http.receive, whole_message(head, answers))
        return Response(body, media_type="application/json")

    async def count_tokens(self, http: Request) -> Response:
        """POST /v1/messages/count_tokens"""
        service = self._service
        request = decode_body(messages_request.count_decoder, await read_body(http, service.options))
        count = await service.worker.run(messages_request.prompt_length, request, service.engine.model)
        return Response(msgspec.json.encode(TokenCount(count)), media_type="application/json")
