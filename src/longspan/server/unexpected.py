"""The last resort: an exception that nothing expected, and a request that the server's end cuts off."""

from __future__ import annotations

import asyncio
import logging

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from longspan.errors import RingError
from longspan.server.error_body import InternalError, error_response
from longspan.server.identity import request_id

logger = logging.getLogger("longspan.server")


class UnexpectedErrors:
    """Logs a bug with its traceback and answers 500 without it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def send_and_note(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except ClientDisconnect:
            # The client left while it was still sending its body: there is nobody to answer.
            return
        except asyncio.CancelledError:
            # The server ends. The task ends with this call, so nothing is left to cancel.
            if not started:
                await error_response(RingError("The server is stopping."), scope)(scope, receive, send)
        except Exception:
            logger.exception("request %s failed by a bug", request_id(scope))
            if not started:
                await error_response(InternalError(), scope)(scope, receive, send)
