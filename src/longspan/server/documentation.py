"""What the server says of its own API: a document for programs, and a page for people."""

from __future__ import annotations

import functools

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from longspan.server.documentation_page import page
from longspan.server.openapi import openapi


class DocumentationEndpoints:
    """The same for every model and without one, so neither the engine nor a key is needed."""

    def routes(self) -> list[Route]:
        """Where they are."""
        return [
            Route("/openapi.json", self.document, methods=["GET"]),
            Route("/docs", self.page, methods=["GET"]),
        ]

    async def document(self, _http: Request) -> Response:
        """GET /openapi.json"""
        return Response(_document(), media_type="application/json")

    async def page(self, _http: Request) -> Response:
        """GET /docs: the document as one page that loads nothing else."""
        headers = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
        return Response(_page(), headers=headers, media_type="text/html")


@functools.cache
def _document() -> bytes:
    return msgspec.json.encode(openapi())


@functools.cache
def _page() -> str:
    return page(openapi())
