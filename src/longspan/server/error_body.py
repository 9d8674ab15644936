"""Errors as HTTP answers."""

from __future__ import annotations

import math

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from longspan.errors import LongspanError, QueueFullError, RequestError, RingError, RingIncompleteError
from longspan.server.dialect import dialect_of
from longspan.server.identity import request_id

RING_RETRY_SECONDS = 5
"""What a client is told to wait while a stage is missing."""


class BodyTooLargeError(RequestError):
    """The request's body is over the limit."""

    status = 413

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The request's body is larger than the limit of {limit} bytes; send a shorter one.",
            code="body_too_large",
        )


class ApiKeyError(RequestError):
    """The request carries no API key, or a wrong one."""

    status = 401

    def __init__(self, message: str) -> None:
        super().__init__(message, code="invalid_api_key")


class BodyTimeoutError(RequestError):
    """The client took too long to send its body."""

    status = 408

    def __init__(self, seconds: float) -> None:
        super().__init__(f"The request's body did not arrive within {seconds:g} seconds.", code="body_timeout")


class InternalError(LongspanError):
    """Something that is a bug; what it was stands in the log, not in the answer."""

    def __init__(self) -> None:
        super().__init__("Something went wrong inside the server; its log says what.")


def error_response(error: LongspanError, scope: Scope) -> Response:
    """The HTTP answer for an error, in the client's dialect, with Retry-After where trying again can help."""
    headers: dict[str, str] = {}
    if isinstance(error, QueueFullError | RingIncompleteError):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    elif isinstance(error, RingError):
        headers["retry-after"] = str(RING_RETRY_SECONDS)
    elif isinstance(error, ApiKeyError):
        headers["www-authenticate"] = "Bearer"
    elif isinstance(error, BodyTooLargeError | BodyTimeoutError):
        headers["connection"] = "close"
    body = dialect_of(scope).error_body(error, request_id(scope))
    return Response(body, error.status, headers, "application/json")


async def handle_longspan_error(request: Request, error: Exception) -> Response:
    """Exception handler for LongspanError."""
    assert isinstance(error, LongspanError)
    return error_response(error, request.scope)


async def handle_http_exception(request: Request, error: Exception) -> Response:
    """Exception handler for what routing refuses: unknown paths and wrong methods."""
    assert isinstance(error, HTTPException)
    path, method = request.scope["path"], request.method
    message = {
        404: f"There is no {path} here; GET /v1/models, POST /v1/chat/completions and others are.",
        405: f"{method} is not allowed on {path}; allowed: {(error.headers or {}).get('Allow', 'nothing')}.",
    }.get(error.status_code, error.detail)
    refusal = RequestError(message)
    refusal.status = error.status_code
    response = error_response(refusal, request.scope)
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response
