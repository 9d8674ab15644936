"""Listening, and the errors of addresses that cannot be had."""

from __future__ import annotations

import asyncio
import socket

import httpx
import pytest

from longspan.errors import UsageError
from longspan.model.tokenizer import Tokenizer
from longspan.server import create_app, serve
from longspan.server.runner import listen, url_of
from tests.server.scripted_engine import ScriptedEngine


async def test_it_serves_until_it_is_cancelled(tokenizer: Tokenizer) -> None:
    urls: asyncio.Queue[str] = asyncio.Queue()
    app = create_app(ScriptedEngine(tokenizer))
    serving = asyncio.create_task(serve(app, "127.0.0.1", 0, on_listening=urls.put_nowait))
    url = await asyncio.wait_for(urls.get(), 10)
    async with httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/health")).status_code == 200
        with pytest.raises(UsageError, match=r"in use by another program.*--port"):
            await serve(app, "127.0.0.1", int(url.rsplit(":", 1)[1]))
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    # The port is free again at once.
    listen("127.0.0.1", int(url.rsplit(":", 1)[1])).close()


def test_the_port_is_named_when_it_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} on 127.0.0.1 is in use") as caught:
            listen("127.0.0.1", port)
    assert caught.value.exit_code == 2


def test_addresses_that_are_not_here() -> None:
    with pytest.raises(UsageError, match=r"not an address of this machine.*--host"):
        listen("203.0.113.1", 0)
    with pytest.raises(UsageError, match="cannot listen on"):
        listen("no.such.host.invalid", 0)
    with pytest.raises(UsageError, match="port 70000 does not exist"):
        listen("127.0.0.1", 70_000)


def test_the_url_is_one_that_a_client_can_open() -> None:
    with listen("0.0.0.0", 0) as listener:
        url = url_of(listener)
        assert url.startswith("http://127.0.0.1:")
        socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1]))).close()
