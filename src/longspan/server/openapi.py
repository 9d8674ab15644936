"""The OpenAPI document, out of the structs that decode the requests and encode the answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

import longspan
from longspan.server.anthropic import messages_request
from longspan.server.anthropic.endpoints import TokenCount
from longspan.server.anthropic.messages_answer import AssistantMessage
from longspan.server.anthropic.messages_request import MessagesRequest, PromptFields
from longspan.server.dialect import AnthropicErrorBody, ErrorBody
from longspan.server.openai import chat_request, completion_request, fields
from longspan.server.openai.chat_answer import ChatCompletion
from longspan.server.openai.chat_request import ChatRequest
from longspan.server.openai.completion_answer import Completion
from longspan.server.openai.completion_request import CompletionRequest
from longspan.server.openai.models import Model, ModelList
from longspan.server.responses import response_request
from longspan.server.responses.response_answer import ResponseObject
from longspan.server.responses.response_request import ResponseRequest
from longspan.server.state import Health, Version
from longspan.server.tokenization import (
    DetokenizeAnswer,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeRequest,
    TokenizerInfo,
)
from longspan.status import Readiness, RingStatus

_REFERENCE = "#/components/schemas/{name}"


class Operation(NamedTuple):
    """One endpoint. answer: None for plain text; streams: whether it can answer with events."""

    method: str
    path: str
    summary: str
    request: type[msgspec.Struct] | None
    answer: type[msgspec.Struct] | None
    streams: bool = False
    refusals: tuple[int, ...] = ()

    @property
    def errors(self) -> type[msgspec.Struct]:
        """The body of what is not a success."""
        return AnthropicErrorBody if self.path.startswith("/v1/messages") else ErrorBody


_RUNS = (400, 401, 404, 408, 413, 429, 503, 504)
_READS = (400, 401, 404, 408, 413, 503)

OPERATIONS = (
    Operation("post", "/v1/chat/completions", "Answer messages", ChatRequest, ChatCompletion, True, _RUNS),
    Operation("post", "/v1/completions", "Continue a text", CompletionRequest, Completion, True, _RUNS),
    Operation("post", "/v1/responses", "Answer items", ResponseRequest, ResponseObject, True, _RUNS),
    Operation("post", "/v1/messages", "Answer messages", MessagesRequest, AssistantMessage, True, _RUNS),
    Operation("post", "/v1/messages/count_tokens", "Tokens of messages", PromptFields, TokenCount, False, _READS),
    Operation("get", "/v1/models", "The served model, in a list", None, ModelList, False, (401, 503)),
    Operation("get", "/v1/models/{name}", "The served model", None, Model, False, (401, 404, 503)),
    Operation(
        "post", "/tokenize", "Tokens of a text or of messages", TokenizeRequest, TokenizeAnswer, False, _READS
    ),
    Operation("post", "/detokenize", "Text of tokens", DetokenizeRequest, DetokenizeAnswer, False, _READS),
    Operation("get", "/tokenizer_info", "Special tokens, chat template", None, TokenizerInfo, False, (401, 503)),
    Operation("get", "/health", "Whether the server answers", None, Health),
    Operation("get", "/ready", "Whether requests can run; 503 says what is missing", None, Readiness),
    Operation("get", "/ring", "Stages, layers, links, epoch", None, RingStatus, False, (401, 503)),
    Operation(
        "delete",
        "/ring/stages/{name}",
        "Send a stage that has joined away",
        None,
        None,
        False,
        (401, 403, 404, 503),
    ),
    Operation("get", "/version", "Version of the server", None, Version, False, (401,)),
    Operation("get", "/metrics", "Prometheus metrics", None, None, False, (401, 503)),
)

_REASONS = {
    400: "A field cannot be used; the error names it",
    401: "No API key, or a wrong one",
    403: "Only the server's own machine may do that",
    404: "No such model, or no such stage",
    408: "The body did not arrive in time",
    413: "The body is over the limit",
    429: "The queue is full; Retry-After says when to come back",
    503: "A stage is missing; Retry-After says when to come back",
    504: "The request waited longer than it may",
}


_NEUTRAL: tuple[tuple[type[msgspec.Struct], Mapping[str, tuple[Any, ...]]], ...] = (
    (ChatRequest, fields.NEUTRAL_VALUES),
    (ChatRequest, chat_request.NEUTRAL_VALUES),
    (CompletionRequest, fields.NEUTRAL_VALUES),
    (CompletionRequest, completion_request.NEUTRAL_VALUES),
    (ResponseRequest, response_request.NEUTRAL_VALUES),
    (PromptFields, messages_request.NEUTRAL_PROMPT_VALUES),
    (MessagesRequest, messages_request.NEUTRAL_PROMPT_VALUES),
    (MessagesRequest, messages_request.NEUTRAL_VALUES),
)
"""Fields that may only ask for nothing."""


def openapi() -> dict[str, Any]:
    """The document, as JSON values."""
    types = {kind for operation in OPERATIONS for kind in (operation.request, operation.answer, operation.errors)}
    ordered = sorted((kind for kind in types if kind is not None), key=lambda kind: kind.__qualname__)
    schemas, components = msgspec.json.schema_components(ordered, ref_template=_REFERENCE)
    by_type = dict(zip(ordered, schemas, strict=True))
    for kind, neutral in _NEUTRAL:
        components[kind.__name__]["properties"] |= {
            name: {"enum": list(values)} for name, values in neutral.items()
        }
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Longspan",
            "version": longspan.__version__,
            "description": "One large language model, split by layers over machines that are far apart.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        # Keys are needed only where the server was started with some.
        "security": [{}, {"bearer": []}, {"key": []}],
    }


def _described(operation: Operation, schemas: dict[type[msgspec.Struct], dict[str, Any]]) -> dict[str, Any]:
    if operation.answer is None:
        content: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    else:
        content = {"application/json": {"schema": schemas[operation.answer]}}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    responses: dict[str, Any] = {"200": {"description": "What was asked for", "content": content}}
    if operation.method == "delete":
        responses = {"204": {"description": "It is gone"}}
    if operation.path == "/ready":
        responses["503"] = {"description": "Something is missing", "content": content}
    refused = {"application/json": {"schema": schemas[operation.errors]}}
    for status in operation.refusals:
        responses[str(status)] = {"description": _REASONS[status], "content": refused}
    described: dict[str, Any] = {"summary": operation.summary, "responses": responses}
    described["operationId"] = operation.method + operation.path.translate({ord(mark): "_" for mark in "/{}"})
    if "{name}" in operation.path:
        described["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    if operation.request is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schemas[operation.request]}},
        }
    return described
