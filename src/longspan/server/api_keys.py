"""API keys."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from longspan.server.error_body import ApiKeyError, error_response

OPEN_PATHS = frozenset({"/health", "/ready"})
"""What load balancers ask, without a key."""


class ApiKeys:
    """Lets through requests with `Authorization: Bearer KEY`, compared in constant time."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            refusal = self._refusal(Headers(scope=scope).get("authorization", ""))
            if refusal is not None:
                await error_response(refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, authorization: str) -> ApiKeyError | None:
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            return ApiKeyError("This server needs an API key: send the header `Authorization: Bearer KEY`.")
        # Every key is compared, so that the time taken says nothing about which one came close.
        matches = [hmac.compare_digest(given.strip().encode("utf-8", "replace"), key) for key in self._keys]
        return None if any(matches) else ApiKeyError("The API key is not one that this server knows.")
