"""A tiny model, and engines over rings of it: real ones, and ones whose stages answer from a script."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from longspan.engine import Engine, EngineOptions
from longspan.model.source import GgufSource
from longspan.model.storage import CACHE_VARIABLE
from longspan.ring.stage_server import StageServer
from longspan.runtime.script import Script
from longspan.runtime.scripted import ScriptedEmbedding
from tests.ring.scripted_ring import ScriptedLoader, stage_servers
from tests.tiny_models import END_TOKEN, write_tiny_model

WIDTH, LAYERS = 64, 4


@pytest.fixture(scope="session")
def engine_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engine")
    write_tiny_model(folder / "tiny.gguf", "llama", weight_type="Q8_0")
    return folder


@pytest.fixture
def tiny_model(engine_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model file; what is composed of it stays beside it for the whole session, also for child processes."""
    monkeypatch.setenv(CACHE_VARIABLE, str(engine_folder / "cache"))
    return engine_folder / "tiny.gguf"


@dataclasses.dataclass
class ScriptedEngine:
    """A running engine whose ring is made of scripted stages in this process. script: what they answer from."""

    engine: Engine
    script: Script
    servers: list[StageServer]
    loaders: list[ScriptedLoader]


Scripted = Callable[..., AbstractAsyncContextManager[ScriptedEngine]]


@pytest.fixture
def scripted(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """Makes engines over scripted stages: `async with scripted(stages=2, slots=3) as running`."""
    monkeypatch.setattr(
        GgufSource,
        "token_embedding",
        lambda source, library=None: ScriptedEmbedding(source.description.vocabulary, WIDTH),
    )

    @contextlib.asynccontextmanager
    async def make(
        stages: int = 2,
        *,
        end_after: int | None = None,
        seconds: float = 0.0,
        exact_rows: int = 32,
        **options: object,
    ) -> AsyncIterator[ScriptedEngine]:
        source = GgufSource(tiny_model)
        script = Script(source.description.vocabulary, end_token=END_TOKEN, end_after=end_after)
        loaders = [
            ScriptedLoader(
                script,
                digest=source.digest,
                width=WIDTH,
                layers=LAYERS,
                seconds=seconds,
                exact_rows=exact_rows,
            )
            for _ in range(stages)
        ]
        async with stage_servers(*loaders) as servers:
            ring = tuple(f"127.0.0.1:{server.port}" for server in servers)
            engine = Engine(EngineOptions(str(tiny_model), ring=ring, **options))  # type: ignore[arg-type]
            await engine.start()
            try:
                yield ScriptedEngine(engine, script, servers, loaders)
            finally:
                await engine.stop()

    return make
