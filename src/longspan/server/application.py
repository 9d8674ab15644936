"""The ASGI application."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from longspan.errors import LongspanError
from longspan.server.access_log import AccessLog, log_accesses_to_standard_error
from longspan.server.api_keys import ApiKeys
from longspan.server.contract import ServingEngine
from longspan.server.error_body import handle_http_exception, handle_longspan_error
from longspan.server.identity import RequestIdentity
from longspan.server.openai.endpoints import OpenAIEndpoints
from longspan.server.options import ServerOptions
from longspan.server.service import Service
from longspan.server.state import StateEndpoints
from longspan.server.tokenization import TokenizationEndpoints
from longspan.server.unexpected import UnexpectedErrors


def create_app(engine: ServingEngine, *, options: ServerOptions | None = None) -> Starlette:
    """The whole API over one engine. The engine is the caller's: it is neither started nor stopped here."""
    options = options or ServerOptions()
    service = Service(engine, options)
    middleware = [Middleware(RequestIdentity)]
    if options.access_log:
        log_accesses_to_standard_error()
        middleware.append(Middleware(AccessLog))
    middleware.append(Middleware(UnexpectedErrors))
    if options.api_keys:
        middleware.append(Middleware(ApiKeys, keys=options.api_keys))

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            service.worker.close()

    return Starlette(
        routes=[
            *OpenAIEndpoints(service).routes(),
            *TokenizationEndpoints(service).routes(),
            *StateEndpoints(service).routes(),
        ],
        middleware=middleware,
        exception_handlers={LongspanError: handle_longspan_error, HTTPException: handle_http_exception},
        lifespan=lifespan,
    )
