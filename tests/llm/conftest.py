"""The tiny model, for engines that really run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from longspan import AsyncLLM
from longspan.model.storage import CACHE_VARIABLE
from tests.tiny_models import write_tiny_model


@pytest.fixture(scope="module")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llm") / "tiny.gguf"
    write_tiny_model(path, "llama", weight_type="Q8_0")
    return path


@pytest.fixture
def tiny(tiny_file: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A reference to a model of four tiny layers."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tiny_file.parent / "cache"))
    return str(tiny_file)


@pytest.fixture
async def llm(tiny: str) -> AsyncIterator[AsyncLLM]:
    async with AsyncLLM(tiny, threads=1, slots=2, context=128) as running:
        yield running
