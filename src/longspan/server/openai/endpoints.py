"""The endpoints of the OpenAI API."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from longspan.server.answers import Answers
from longspan.server.anthropic import models as anthropic_models
from longspan.server.body import decode_body, read_body
from longspan.server.dialect import speaks_anthropic
from longspan.server.disconnect import while_connected
from longspan.server.event_stream import EventStream
from longspan.server.openai import chat_request, completion_request, models
from longspan.server.openai.answer_head import answer_head
from longspan.server.openai.chat_answer import chat_events, whole_chat
from longspan.server.openai.completion_answer import completion_events, whole_completion
from longspan.server.openai.fields import check_model
from longspan.server.service import Service


class OpenAIEndpoints:
    """Chat and text completions, and the list of models."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """Where they are."""
        return [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.complete, methods=["POST"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{name:path}", self.model, methods=["GET"]),
        ]

    async def chat(self, http: Request) -> Response:
        """POST /v1/chat/completions"""
        service = self._service
        request = decode_body(chat_request.decoder, await read_body(http, service.options))
        model = service.engine.model
        requests, form = await service.worker.run(chat_request.chat_generation, request, model)
        head = answer_head("chatcmpl-", request, model, requests)
        answers = Answers(service.engine, requests, service.metrics.requests, whole=not request.stream)
        if request.stream:
            return EventStream(chat_events(head, form, answers), answers, service.options)
        async with answers:
            body = await while_connected(http.receive, whole_chat(head, form, answers))
        return Response(body, media_type="application/json")

    async def complete(self, http: Request) -> Response:
        """POST /v1/completions"""
        service = self._service
        request = decode_body(completion_request.decoder, await read_body(http, service.options))
        model = service.engine.model
        requests = await service.worker.run(completion_request.completion_requests, request, model)
        head = answer_head("cmpl-", request, model, requests)
        echoed = completion_request.echoes(request, head.prompts, model)
        answers = Answers(service.engine, requests, service.metrics.requests, whole=not request.stream)
        if request.stream:
            return EventStream(completion_events(head, answers, echoed), answers, service.options)
        async with answers:
            body = await while_connected(http.receive, whole_completion(head, answers, echoed))
        return Response(body, media_type="application/json")

    async def models(self, http: Request) -> Response:
        """GET /v1/models"""
        model = self._service.engine.model
        if speaks_anthropic(http.scope):
            described = anthropic_models.described(model)
            return _json(anthropic_models.AnthropicModelList([described], described.id, described.id))
        return _json(models.ModelList([models.described(model)]))

    async def model(self, http: Request) -> Response:
        """GET /v1/models/{name}"""
        model = self._service.engine.model
        check_model(http.path_params["name"], model)
        if speaks_anthropic(http.scope):
            return _json(anthropic_models.described(model))
        return _json(models.described(model))


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
