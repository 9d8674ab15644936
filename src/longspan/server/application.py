"""The ASGI application."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from longspan.errors import LongspanError
from longspan.server.access_log import AccessLog, log_accesses_to_standard_error
from longspan.server.anthropic.endpoints import AnthropicEndpoints
from longspan.server.api_keys import ApiKeys
from longspan.server.contract import ServingEngine
from longspan.server.dashboard.endpoints import DashboardEndpoints
from longspan.server.documentation import DocumentationEndpoints
from longspan.server.error_body import handle_http_exception, handle_longspan_error
from longspan.server.identity import RequestIdentity
from longspan.server.openai.endpoints import OpenAIEndpoints
from longspan.server.operation import OperatorEndpoints
from longspan.server.options import ServerOptions
from longspan.server.responses.endpoints import ResponsesEndpoints
from longspan.server.service import Service
from longspan.server.state import StateEndpoints
from longspan.server.tokenization import TokenizationEndpoints
from longspan.server.unexpected import UnexpectedErrors


def create_app(engine: ServingEngine, *, options: ServerOptions | None = None) -> Starlette:
    """The whole API over one engine. The engine is the caller's: it is neither started nor stopped here."""
    options = options or ServerOptions()
    service = Service(engine, options)
    dashboard = DashboardEndpoints(service)
    middleware = [Middleware(RequestIdentity)]
    if options.access_log:
        log_accesses_to_standard_error()
        middleware.append(Middleware(AccessLog))
    if options.cors_origins:
        # Outside of everything that refuses: a browser asks for permission without a key, and wants to read errors.
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=options.cors_origins,
                allow_methods=("GET", "POST"),
                allow_headers=("*",),
                expose_headers=("x-request-id", "request-id", "retry-after"),
            )
        )
    middleware.append(Middleware(UnexpectedErrors))
    if options.api_keys:
        middleware.append(Middleware(ApiKeys, keys=options.api_keys))

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await dashboard.close()
            service.worker.close()

    application = Starlette(
        routes=[
            *OpenAIEndpoints(service).routes(),
            *ResponsesEndpoints(service).routes(),
            *AnthropicEndpoints(service).routes(),
            *TokenizationEndpoints(service).routes(),
            *StateEndpoints(service).routes(),
            *OperatorEndpoints(service, keys=bool(options.api_keys)).routes(),
            *DocumentationEndpoints().routes(),
            *dashboard.routes(),
        ],
        middleware=middleware,
        exception_handlers={LongspanError: handle_longspan_error, HTTPException: handle_http_exception},
        lifespan=lifespan,
    )
    application.state.end_streams = dashboard.end
    return application
