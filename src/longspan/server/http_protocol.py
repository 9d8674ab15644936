"""HTTP/1.1 as uvicorn speaks it, with JSON also for what is not HTTP."""

from __future__ import annotations

import http
import secrets
import sys

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from longspan.errors import RequestError
from longspan.server.dialect import OPENAI

HEADER_BYTES = 65_536
"""Longest request line and headers together."""

_UNANSWERED = (h11.IDLE, h11.SEND_RESPONSE)


class HttpProtocol(H11Protocol):
    """What cannot be read as a request is answered with a JSON error, and the connection closed."""

    def send_400_response(self, msg: str) -> None:
        """Called while the parser's exception is handled. Says nothing in the middle of an answer."""
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        if self.conn.our_state in _UNANSWERED:
            name = secrets.token_hex(12)
            body = OPENAI.error_body(_refusal(status, error), name)
            head = (
                f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
                f"x-request-id: {name}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()


def _refusal(status: int, error: BaseException | None) -> RequestError:
    if status == http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
        message = f"The request line and headers are longer than the limit of {HEADER_BYTES} bytes."
    else:
        message = f"This is not a request of HTTP/1.1: {error}."
    refusal = RequestError(message, code="invalid_http")
    refusal.status = status
    return refusal
