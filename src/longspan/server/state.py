"""What the server says of itself: health, readiness, the ring, its version, its metrics."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import longspan
from longspan.server.error_body import RING_RETRY_SECONDS
from longspan.server.metrics import ServerMetrics
from longspan.server.service import Service


class Health(msgspec.Struct, frozen=True):
    """The server answers."""

    status: str = "ok"


class Version(msgspec.Struct, frozen=True):
    """version: of Longspan."""

    version: str


class StateEndpoints:
    """Read-only, cheap, and answered also while the ring is not there."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """Where they are."""
        return [
            Route("/health", self.health, methods=["GET"]),
            Route("/ready", self.ready, methods=["GET"]),
            Route("/ring", self.ring, methods=["GET"]),
            Route("/version", self.version, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
        ]

    async def health(self, _http: Request) -> Response:
        """GET /health: 200 as long as the server answers at all."""
        return _json(Health())

    async def ready(self, _http: Request) -> Response:
        """GET /ready: 200 when requests can run, else 503 with what is missing."""
        readiness = self._service.engine.readiness()
        if readiness.ready:
            return _json(readiness)
        response = _json(readiness, status=503)
        response.headers["retry-after"] = str(RING_RETRY_SECONDS)
        return response

    async def ring(self, _http: Request) -> Response:
        """GET /ring: stages, layers, links and epoch."""
        return _json(self._service.engine.ring())

    async def version(self, _http: Request) -> Response:
        """GET /version"""
        return _json(Version(longspan.__version__))

    async def metrics(self, _http: Request) -> Response:
        """GET /metrics, for Prometheus."""
        text = await asyncio.to_thread(self._service.metrics.text)
        return Response(text, media_type=ServerMetrics.content_type)


def _json(value: msgspec.Struct, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
