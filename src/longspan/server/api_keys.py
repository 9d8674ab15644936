"""API keys."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from longspan.errors import UsageError
from longspan.server.dashboard.endpoints import PAGE_PATHS
from longspan.server.error_body import ApiKeyError, error_response

OPEN_PATHS = frozenset({"/health", "/ready", "/docs", "/openapi.json"}) | PAGE_PATHS
"""What load balancers ask, and what a browser opens before anybody can give it a key."""


def keys_of_file(path: Path) -> tuple[str, ...]:
    """The keys of a file, one a line, without blank lines and lines that begin with #.

    Raises UsageError when it cannot be read or holds none: a server that was meant to be closed must not be open.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read the API keys of {path}: {error}. Give a text file with a key a line."
        ) from error
    keys = tuple(text for line in lines if (text := line.strip()) and not text.startswith("#"))
    if not keys:
        raise UsageError(f"{path} holds no API key. Write one a line.")
    return keys


def checked_keys(keys: Sequence[str]) -> tuple[str, ...]:
    """The keys, if a header can carry every one of them. Raises UsageError."""
    for number, key in enumerate(keys, 1):
        if not (key.isascii() and key.isprintable()) or not key or " " in key:
            raise UsageError(
                f"API key {number} cannot be used: a key is printable ASCII without blanks, not empty."
            )
    return tuple(keys)


class ApiKeys:
    """Lets through requests with `Authorization: Bearer KEY` or `x-api-key: KEY`, compared in constant time."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            refusal = self._refusal(Headers(scope=scope))
            if refusal is not None:
                await error_response(refusal, scope)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, headers: Headers) -> ApiKeyError | None:
        given = _given_key(headers).encode("latin-1", "replace")
        if not given:
            return ApiKeyError(
                "This server needs an API key: send the header `Authorization: Bearer KEY` or `x-api-key: KEY`."
            )
        # Every key is compared, so that the time taken says nothing about which one came close.
        matches = [hmac.compare_digest(given, key) for key in self._keys]
        return None if any(matches) else ApiKeyError("The API key is not one that this server knows.")


def _given_key(headers: Headers) -> str:
    """The key that a request carries, in OpenAI's header or in Anthropic's; empty when there is none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return headers.get("x-api-key", "").strip()
