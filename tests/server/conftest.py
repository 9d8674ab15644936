"""A real HTTP server on a thread of its own, over a scripted engine."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import httpx
import pytest

from longspan.model.tokenizer import Tokenizer
from longspan.server import ServerOptions, create_app, serve
from tests.server.scripted_engine import ScriptedEngine
from tests.tiny_models import write_tiny_model


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", "llama", layers=1))


@contextlib.contextmanager
def running_server(engine: ScriptedEngine, options: ServerOptions) -> Iterator[str]:
    """Serve the engine until the block ends; gives the URL."""
    loop = asyncio.new_event_loop()
    listening: asyncio.Future[str] = loop.create_future()
    app = create_app(engine, options=options)
    serving = loop.create_task(serve(app, "127.0.0.1", 0, on_listening=listening.set_result, grace_seconds=1))

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(serving)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    async def url() -> str:
        return await listening

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(url(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def shared_server(tokenizer: Tokenizer) -> Iterator[tuple[ScriptedEngine, httpx.Client]]:
    engine = ScriptedEngine(tokenizer)
    options = ServerOptions(body_limit=20_000)
    with running_server(engine, options) as url, httpx.Client(base_url=url, timeout=10) as client:
        yield engine, client


@pytest.fixture
def engine(shared_server: tuple[ScriptedEngine, httpx.Client]) -> ScriptedEngine:
    """The engine behind `client`, with its plain script."""
    engine, _ = shared_server
    engine.reset()
    return engine


@pytest.fixture
def client(shared_server: tuple[ScriptedEngine, httpx.Client], engine: ScriptedEngine) -> httpx.Client:
    _, client = shared_server
    return client
