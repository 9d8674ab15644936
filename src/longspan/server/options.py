"""What a person can set about the HTTP side."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class ServerOptions:
    """Limits and switches of the HTTP server.

    body_limit: most bytes of a request body. api_keys: when not empty, a request must carry one of them.
    heartbeat_seconds: a stream that has nothing to say for so long sends a comment, so that proxies keep it open.
    receive_timeout_seconds: how long a request body may take to arrive.
    send_timeout_seconds: a client that takes nothing for so long is given up, and its request cancelled.
    cors_origins: web pages of these origins may ask from a browser; "*" is any page.
    access_log: whether every request is logged as a JSON line (without its body) on the logger `longspan.access`.
    """

    body_limit: int = 10_000_000
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    heartbeat_seconds: float = 15.0
    receive_timeout_seconds: float = 60.0
    send_timeout_seconds: float = 60.0
    access_log: bool = False
