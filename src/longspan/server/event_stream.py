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
from longspan.server.disconnect import while_connected
from longspan.server.error_body import InternalError, error_body
from longspan.server.identity import request_id
from longspan.server.options import ServerOptions

logger = logging.getLogger("longspan.server")

_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # A proxy that collects the answer would take away what streaming is for.
    "x-accel-buffering": "no",
}
_DONE = b"data: [DONE]\n\n"
_HEARTBEAT = b": waiting\n\n"


class _StalledClientError(Exception):
    """The client has taken nothing for too long."""


class EventStream(Response):
    """Sends every item of `events`, JSON without line breaks, as one event, and `[DONE]` after the last.

    The answer begins with the first event or heartbeat: what goes wrong before is still an ordinary HTTP error, and
    what goes wrong afterwards is an event with an `error`. Writing waits for the client, so what is not yet sent
    stays in the engine's stream, which the length of the answer bounds. `answers` is where the events come from: it
    is left, and so cancelled, at the end and when the client goes.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        answers: contextlib.AbstractAsyncContextManager[object],
        options: ServerOptions,
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._answers = answers
        self._options = options
        self._began = False
        self._last_sent = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._answers:
            await while_connected(receive, self._run(scope, send))

    async def _run(self, scope: Scope, send: Send) -> None:
        heart = asyncio.create_task(self._beat(send))
        try:
            async with contextlib.aclosing(self._events):
                async for event in self._events:
                    await self._write(send, b"data: " + event + b"\n\n")
            await self._write(send, _DONE)
        except _StalledClientError:
            # Returning without an end makes the HTTP server cut the connection.
            logger.warning("request %s: the client takes nothing any more and was given up", request_id(scope))
            return
        except asyncio.CancelledError:
            if self._began:
                await self._end_with(send, RingError("The server is stopping."))
            raise
        except LongspanError as error:
            if not self._began:
                raise
            await self._end_with(send, error)
        except Exception:
            if not self._began:
                raise
            logger.exception("request %s failed by a bug", request_id(scope))
            await self._end_with(send, InternalError())
        finally:
            heart.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send, data: bytes) -> None:
        try:
            async with asyncio.timeout(self._options.send_timeout_seconds):
                if not self._began:
                    self._began = True
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except TimeoutError:
            raise _StalledClientError from None
        self._last_sent = time.monotonic()

    async def _end_with(self, send: Send, error: LongspanError) -> None:
        # A client that stalls now has lost nothing but the reason.
        with contextlib.suppress(_StalledClientError):
            await self._write(send, b"data: " + error_body(error) + b"\n\n" + _DONE)

    async def _beat(self, send: Send) -> None:
        interval = self._options.heartbeat_seconds
        # When the client stalls, the next event finds out and ends the request.
        with contextlib.suppress(_StalledClientError):
            while True:
                quiet = time.monotonic() - self._last_sent
                if quiet < interval:
                    await asyncio.sleep(interval - quiet)
                else:
                    await self._write(send, _HEARTBEAT)
