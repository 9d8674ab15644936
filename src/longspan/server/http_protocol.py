"""HTTP/1.1 as uvicorn speaks it, with JSON also for what is not HTTP."""

from __future__ import annotations

import asyncio
import collections
import http
import secrets
import sys
import weakref

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from longspan.errors import RequestError
from longspan.server.dialect import OPENAI

HEADER_BYTES = 65_536
"""Longest request line and headers together."""

HEADER_SECONDS = 20.0
MAX_SILENT = 256
"""Connections that may be without a whole request at the same time."""

_silent: weakref.WeakKeyDictionary[ServerState, collections.OrderedDict[HttpProtocol, None]]
_silent = weakref.WeakKeyDictionary()
"""For each server the connections that have still to send the headers of a request, oldest first."""

_UNANSWERED = (h11.IDLE, h11.SEND_RESPONSE)


class HttpProtocol(H11Protocol):
    """What cannot be read as a request is answered with a JSON error, and the connection closed.

    A connection that has not sent the headers of a request has `HEADER_SECONDS` for them, however slowly they come;
    of more than `MAX_SILENT` of these the oldest is closed, so that a crowd that only connects keeps nobody out.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        super().connection_lost(exc)
        self._forget()

    def _watch(self) -> None:
        """Whether a request is still to come. Between two of them uvicorn's own time for idle ones counts."""
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._forget()
        elif self._deadline is None and (self.cycle is None or self.conn.trailing_data[0]):
            self._deadline = self.loop.call_later(HEADER_SECONDS, self.transport.close)
            silent = _silent.setdefault(self.server_state, collections.OrderedDict())
            silent[self] = None
            if len(silent) > MAX_SILENT:
                silent.popitem(last=False)[0].transport.abort()

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
            _silent[self.server_state].pop(self, None)

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
