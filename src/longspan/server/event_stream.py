"""Server-sent events: one event a committed burst."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from longspan.errors import LongspanError, RingError
from longspan.server.dialect import OPENAI, Dialect
from longspan.server.disconnect import while_connected
from longspan.server.error_body import InternalError
from longspan.server.identity import request_id
from longspan.server.options import ServerOptions

logger = logging.getLogger("longspan.server")

_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # A proxy that collects the answer would take away what streaming is for.
    "x-accel-buffering": "no",
}
_HEARTBEAT = b": waiting\n\n"


_LAST_WORDS_SECONDS = 1.0
"""What a client gets to take the reason why its stream ends with the server."""


class EventStream(Response):
    """Sends every item of `events` as one event of the API's dialect, and the dialect's end after the last.

    The answer begins with the first event or heartbeat: what goes wrong before is still an ordinary HTTP error, and
    what goes wrong afterwards is an event. Writing waits for the client, so what is not yet sent
    stays in the engine's stream, which the length of the answer bounds. `answers` is where the events come from: it
    is left, and so cancelled, at the end and when the client goes.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        answers: contextlib.AbstractAsyncContextManager[object],
        options: ServerOptions,
        dialect: Dialect = OPENAI,
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._answers = answers
        self._options = options
        self._dialect = dialect
        self._began = False
        self._writing = False
        self._stalled = False
        self._touched = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._answers:
            await while_connected(receive, self._run(scope, send))

    async def _run(self, scope: Scope, send: Send) -> None:
        writer = asyncio.current_task()
        assert writer is not None
        watch = asyncio.create_task(self._watch(send, writer))
        try:
            await self._write_all(scope, send)
        except asyncio.CancelledError:
            if self._stalled:
                # Returning without an end makes the HTTP server cut the connection.
                writer.uncancel()
                logger.warning("request %s: the client takes nothing any more; given up", request_id(scope))
                return
            if self._began:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LAST_WORDS_SECONDS):
                        await self._write_failure(send, scope, RingError("The server is stopping."))
                        await self._write(send, self._dialect.end, more=False)
            raise
        finally:
            watch.cancel()

    async def _write_all(self, scope: Scope, send: Send) -> None:
        frame = self._dialect.frame
        try:
            async with contextlib.aclosing(self._events):
                async for event in self._events:
                    await self._write(send, frame(event))
        except LongspanError as error:
            if not self._began:
                raise
            await self._write_failure(send, scope, error)
        except Exception:
            if not self._began:
                raise
            logger.exception("request %s failed by a bug", request_id(scope))
            await self._write_failure(send, scope, InternalError())
        await self._write(send, self._dialect.end, more=False)

    async def _write_failure(self, send: Send, scope: Scope, error: LongspanError) -> None:
        await self._write(send, self._dialect.failure(error, request_id(scope)))

    async def _write(self, send: Send, data: bytes, *, more: bool = True) -> None:
        self._writing = True
        self._touched = time.monotonic()
        if not self._began:
            self._began = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": data, "more_body": more})
        self._writing = False
        self._touched = time.monotonic()

    async def _watch(self, send: Send, writer: asyncio.Task[None]) -> None:
        """Send heartbeats, and end the writer when the client takes nothing. One timer a stream, none an event."""
        heartbeat, patience = self._options.heartbeat_seconds, self._options.send_timeout_seconds
        while True:
            wait = self._touched + (patience if self._writing else heartbeat) - time.monotonic()
            if wait > 0:
                await asyncio.sleep(min(wait, patience))
            elif self._writing:
                break
            else:
                try:
                    async with asyncio.timeout(patience):
                        await self._write(send, _HEARTBEAT)
                except TimeoutError:
                    break
        self._stalled = True
        writer.cancel()
