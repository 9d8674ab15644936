"""How an API writes what is the same everywhere: errors, and the frame of a stream."""

from __future__ import annotations

from typing import Protocol

import msgspec
from starlette.types import Scope

from longspan.errors import LongspanError, RequestError

ANTHROPIC_PATH = "/v1/messages"
_ANTHROPIC_HEADER = b"anthropic-version"
_SCOPE_KEY = "longspan.dialect"

_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_OPENAI_CODES = {
    404: "not_found",
    405: "method_not_allowed",
    429: "queue_full",
    503: "ring_unavailable",
    504: "timeout",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ErrorDetail(msgspec.Struct, frozen=True):
    """message: for a person. type: by status. param: the request's field. code: for a program."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every answer that is not a success."""

    error: ErrorDetail


class AnthropicErrorDetail(msgspec.Struct, frozen=True):
    """type: by status. message: for a person; it names the field."""

    type: str
    message: str


class AnthropicErrorBody(msgspec.Struct, frozen=True):
    """The body of every answer of the Anthropic API that is not a success. request_id: as in the header."""

    error: AnthropicErrorDetail
    request_id: str | None = None
    type: str = "error"


class Dialect(Protocol):
    """One API's way of writing.

    end: what closes a stream.
    """

    @property
    def end(self) -> bytes: ...

    def error_body(self, error: LongspanError, request_id: str) -> bytes:
        """The JSON of an error, for an answer that has not begun."""
        ...

    def frame(self, event: bytes) -> bytes:
        """One event of a stream, as its generator gives it, as it goes over the wire."""
        ...

    def failure(self, error: LongspanError, request_id: str) -> bytes:
        """What a stream says when it breaks off in the middle."""
        ...


class OpenAIDialect:
    """Events without a name; `[DONE]` after the last."""

    end = b"data: [DONE]\n\n"

    def error_body(self, error: LongspanError, request_id: str) -> bytes:
        """`{"error": {"message", "type", "param", "code"}}`"""
        kind = _OPENAI_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
        code = (error.code if isinstance(error, RequestError) else None) or _OPENAI_CODES.get(error.status)
        param = error.param if isinstance(error, RequestError) else None
        return msgspec.json.encode(ErrorBody(ErrorDetail(str(error), kind, param, code)))

    def frame(self, event: bytes) -> bytes:
        """JSON without line breaks becomes one event."""
        return b"data: " + event + b"\n\n"

    def failure(self, error: LongspanError, request_id: str) -> bytes:
        """An event with an `error`."""
        return self.frame(self.error_body(error, request_id))


class ResponsesDialect(OpenAIDialect):
    """Events with a name, which their generator has framed already."""

    def frame(self, event: bytes) -> bytes:
        """As it is."""
        return event

    def failure(self, error: LongspanError, request_id: str) -> bytes:
        """An event of the name `error`."""
        detail = msgspec.json.decode(self.error_body(error, request_id))["error"]
        return named_event("error", msgspec.json.encode({**detail, "type": "error", "sequence_number": 0}))


class AnthropicDialect:
    """Events with a name, framed by their generator; nothing after the last."""

    end = b""

    def error_body(self, error: LongspanError, request_id: str) -> bytes:
        """`{"type": "error", "error": {"type", "message"}, "request_id"}`"""
        kind = _ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
        return msgspec.json.encode(AnthropicErrorBody(AnthropicErrorDetail(kind, str(error)), request_id or None))

    def frame(self, event: bytes) -> bytes:
        """As it is."""
        return event

    def failure(self, error: LongspanError, request_id: str) -> bytes:
        """An event of the name `error`."""
        return named_event("error", self.error_body(error, request_id))


OPENAI = OpenAIDialect()
RESPONSES = ResponsesDialect()
ANTHROPIC = AnthropicDialect()


def named_event(name: str, data: bytes) -> bytes:
    """A server-sent event with a name. data: JSON without line breaks."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def speaks_anthropic(scope: Scope) -> bool:
    """Whether a client of the Anthropic API asks: by the path, or by the header that its clients send."""
    known: bool | None = scope.get(_SCOPE_KEY)
    if known is None:
        path: str = scope["path"]
        known = path == ANTHROPIC_PATH or path.startswith(ANTHROPIC_PATH + "/")
        known = known or any(name == _ANTHROPIC_HEADER for name, _ in scope["headers"])
        scope[_SCOPE_KEY] = known
    return known


def dialect_of(scope: Scope) -> Dialect:
    """The dialect in which a request that goes wrong is answered."""
    return ANTHROPIC if speaks_anthropic(scope) else OPENAI
