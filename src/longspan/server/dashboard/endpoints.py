"""The dashboard: a page at `/`, its files, and its stream of frames."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from longspan.errors import QueueFullError
from longspan.server.dashboard.feed import MOST_VIEWERS, DashboardFeed
from longspan.server.service import Service

FILES = {
    "dashboard.css": "text/css",
    "dashboard.js": "text/javascript",
    "charts.js": "text/javascript",
    "chat.js": "text/javascript",
}
"""What the page loads, all of it from here."""

PAGE_PATHS = frozenset({"/", *(f"/dashboard/{name}" for name in FILES)})
"""Readable without a key, so that a person can enter one."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'"
)


class DashboardEndpoints:
    """GET /, its files under /dashboard/, and /dashboard/events."""

    def __init__(self, service: Service) -> None:
        self._feed = DashboardFeed(service.engine)

    def routes(self) -> list[Route]:
        """Where they are."""
        return [
            Route("/", self.page, methods=["GET"]),
            Route("/dashboard/events", self.events, methods=["GET"]),
            *(Route(f"/dashboard/{name}", self.file, methods=["GET"]) for name in FILES),
        ]

    def end(self) -> None:
        """End the streams, which do not end by themselves: the server stops."""
        self._feed.end()

    async def close(self) -> None:
        """End the feed."""
        await self._feed.close()

    async def page(self, _http: Request) -> Response:
        """GET /: the page."""
        headers = {"content-security-policy": _POLICY, "referrer-policy": "no-referrer"}
        return Response(_file("index.html"), headers=headers, media_type="text/html")

    async def file(self, http: Request) -> Response:
        """GET /dashboard/NAME"""
        name = http.url.path.rpartition("/")[2]
        return Response(_file(name), headers={"cache-control": "no-cache"}, media_type=FILES[name])

    async def events(self, _http: Request) -> Response:
        """GET /dashboard/events: frames as server-sent events, twice a second."""
        if self._feed.full:
            raise QueueFullError(f"{MOST_VIEWERS} people watch already, which is the most", retry_after=10.0)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._events(), headers=headers, media_type="text/event-stream")

    async def _events(self) -> AsyncIterator[bytes]:
        async for frame in self._feed.frames():
            yield b"data: " + frame + b"\n\n"


@functools.cache
def _file(name: str) -> bytes:
    return (resources.files("longspan.server.dashboard") / "page" / name).read_bytes()
