"""An engine behind HTTP on the running loop, as `longspan serve` has it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from longspan.engine import Engine
from longspan.server import create_app, serve


@contextlib.asynccontextmanager
async def served_engine(engine: Engine) -> AsyncIterator[tuple[str, int]]:
    """Host and port, until the block ends. The engine runs already, and goes on running."""
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(create_app(engine), "127.0.0.1", 0, on_listening=listening.set_result))
    try:
        host, _, port = (await listening).removeprefix("http://").rpartition(":")
        yield host, int(port)
    finally:
        serving.cancel()
        await asyncio.wait((serving,))
