"""Running the application under uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from longspan.errors import UsageError
from longspan.server.http_protocol import HEADER_BYTES, HttpProtocol

_BACKLOG = 2048
_KEEP_ALIVE_SECONDS = 75


async def serve(
    app: ASGIApp,
    host: str,
    port: int,
    *,
    on_listening: Callable[[str], None] | None = None,
    grace_seconds: float = 5.0,
) -> None:
    """Serve until cancelled. Port 0 takes any free one; signals are left to the caller.

    on_listening: called with the URL, "http://127.0.0.1:8000", when connections are accepted.
    grace_seconds: after the cancellation running requests get so long to finish; then they are cut off.
    Raises UsageError when the address cannot be listened on.
    """
    listener = listen(host, port)
    config = uvicorn.Config(
        app,
        http=HttpProtocol,
        ws="none",
        lifespan="on",
        h11_max_incomplete_event_size=HEADER_BYTES,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, round(grace_seconds)),
    )
    server = _Server(config, lambda: on_listening(url_of(listener)) if on_listening else None)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        server.should_exit = True
        if isinstance(app, Starlette):
            # What never ends by itself would use up the grace of those who are about to finish.
            app.state.end_streams()
        await running
        raise
    finally:
        listener.close()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises UsageError that says why the address cannot be had, and what to do."""
    if not 0 <= port <= 65535:
        raise UsageError(f"port {port} does not exist; ports go from 1 to 65535, and 0 takes any free one.")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise UsageError(
            f"cannot listen on {host} port {port}: {error}. Give an address of this machine."
        ) from error
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        # Connections of a server that has just ended must not keep its port from the next one.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise UsageError(_refusal(host, port, error)) from error
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket) -> str:
    """Where a client on this machine finds the server."""
    host, port = listener.getsockname()[:2]
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        address = ipaddress.ip_address("::1" if address.version == 6 else "127.0.0.1")
    return f"http://[{address}]:{port}" if address.version == 6 else f"http://{address}:{port}"


def _refusal(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is in use by another program. "
            "End that program, or choose another port with --port (0 takes any free one)."
        )
    if error.errno == errno.EACCES:
        return f"no permission to listen on port {port}. Choose one above 1023 with --port."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine. Choose another with --host, for example 127.0.0.1."
    return f"cannot listen on {host} port {port}: {error}."


class _Server(uvicorn.Server):
    """Says when it listens, and leaves signals alone."""

    def __init__(self, config: uvicorn.Config, on_listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_listening()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
