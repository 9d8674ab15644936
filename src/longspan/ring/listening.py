"""The end of listening."""

from __future__ import annotations

import asyncio


async def stop_listening(server: asyncio.Server) -> None:
    """Accept nothing more, and leave no connection that was accepted last without its protocol.

    asyncio makes the transport of an accepted connection one round of the loop later. When the server was closed in
    between, that fails (CPython issue 109564), and the socket stays open with nobody who knows of it.
    """
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())
    for _ in range(2):  # a connection accepted in this round, behind us, has its transport in the next
        await asyncio.sleep(0)
    server.close()
