"""Errors as clients of the OpenAI API read them."""

from __future__ import annotations

import math

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from longspan.errors import LongspanError, QueueFullError, RequestError, RingError

RING_RETRY_SECONDS = 5
"""What a client is told to wait while a stage is missing."""

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES = {404: "not_found", 405: "method_not_allowed", 429: "queue_full", 503: "ring_unavailable", 504: "timeout"}


class ErrorDetail(msgspec.Struct, frozen=True):
    """message: for a person. type: by status. param: the request's field. code: for a program."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every answer that is not a success."""

    error: ErrorDetail


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


class InternalError(LongspanError):
    """Something that is a bug; what it was stands in the log, not in the answer."""

    def __init__(self) -> None:
        super().__init__("Something went wrong inside the server; its log says what.")


def error_body(error: LongspanError) -> bytes:
    """The JSON of an error."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    code = (error.code if isinstance(error, RequestError) else None) or _CODES.get(error.status)
    param = error.param if isinstance(error, RequestError) else None
    return msgspec.json.encode(ErrorBody(ErrorDetail(str(error), kind, param, code)))


def error_response(error: LongspanError) -> Response:
    """The HTTP answer for an error, with Retry-After where trying again can help."""
    headers: dict[str, str] = {}
    if isinstance(error, QueueFullError):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    elif isinstance(error, RingError):
        headers["retry-after"] = str(RING_RETRY_SECONDS)
    elif isinstance(error, ApiKeyError):
        headers["www-authenticate"] = "Bearer"
    elif isinstance(error, BodyTooLargeError):
        headers["connection"] = "close"
    return Response(error_body(error), error.status, headers, "application/json")


async def handle_longspan_error(_request: Request, error: Exception) -> Response:
    """Exception handler for LongspanError."""
    assert isinstance(error, LongspanError)
    return error_response(error)


async def handle_http_exception(request: Request, error: Exception) -> Response:
    """Exception handler for what routing refuses: unknown paths and wrong methods."""
    assert isinstance(error, HTTPException)
    path, method = request.scope["path"], request.method
    message = {
        404: f"There is no {path} here; GET /v1/models, POST /v1/chat/completions and others are.",
        405: f"{method} is not allowed on {path}; allowed: {(error.headers or {}).get('Allow', 'nothing')}.",
    }.get(error.status_code, error.detail)
    refusal = RequestError(message, code=_CODES.get(error.status_code))
    refusal.status = error.status_code
    response = error_response(refusal)
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response
