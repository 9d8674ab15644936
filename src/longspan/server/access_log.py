"""One JSON line a request: who asked for what and how it went, never what was said."""

from __future__ import annotations

import logging
import sys
import time

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from longspan.server.identity import request_id

logger = logging.getLogger("longspan.access")


class AccessLine(msgspec.Struct, frozen=True):
    """time: Unix seconds when the request came. status: 0 when the client left before an answer began."""

    time: float
    request_id: str
    client: str
    method: str
    path: str
    status: int
    duration_ms: float
    sent_bytes: int


class AccessLog:
    """Logs a line at the end of every request, on the logger `longspan.access` at level INFO."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = sent = 0

        async def send_and_count(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                sent += len(message.get("body", b""))
            await send(message)

        came, started = time.time(), time.perf_counter()
        try:
            await self._app(scope, receive, send_and_count)
        finally:
            client = scope.get("client")
            line = AccessLine(
                time=round(came, 3),
                request_id=request_id(scope),
                client=client[0] if client else "",
                method=scope["method"],
                path=scope["path"],
                status=status,
                duration_ms=round((time.perf_counter() - started) * 1000, 3),
                sent_bytes=sent,
            )
            logger.info("%s", msgspec.json.encode(line).decode())


def log_accesses_to_standard_error() -> None:
    """Write the access lines to standard error, as they are; unless the logger has a handler of its own already."""
    if logger.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
