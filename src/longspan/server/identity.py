"""A name for every request: `x-request-id`, given by the client or made up here, and sent back."""

from __future__ import annotations

import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from longspan.server.dialect import speaks_anthropic

REQUEST_ID_PATTERN = r"^[A-Za-z0-9._:-]{1,128}$"
_PATTERN = re.compile(REQUEST_ID_PATTERN)
_KEY = "longspan.request_id"


def request_id(scope: Scope) -> str:
    """The name of the request that `scope` belongs to."""
    name: str = scope.get(_KEY, "")
    return name


class RequestIdentity:
    """Takes the client's `x-request-id` when it is a plain name of at most 128 characters, else makes one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        name = given if _PATTERN.match(given) else secrets.token_hex(12)
        scope[_KEY] = name

        async def send_with_name(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = name
                if speaks_anthropic(scope):
                    # Where that API's clients look for it.
                    headers["request-id"] = name
            await send(message)

        await self._app(scope, receive, send_with_name)
