"""Clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

Result = TypeVar("Result")


async def while_connected(receive: Receive, work: Coroutine[None, None, Result]) -> Result:
    """Run `work` as long as the client is there; the request's body must have been read.

    Raises ClientDisconnect as soon as the client has left; `work` is cancelled then, and also when the caller is.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_left(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        watching.cancel()
        if not working.done():
            working.cancel()
            # Its own clean-up must be over before the request counts as done.
            await asyncio.wait((working,))


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
