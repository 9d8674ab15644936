"""A tiny model whose stages real processes can hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from longspan.model.storage import CACHE_VARIABLE
from tests.tiny_models import write_tiny_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ring")
    write_tiny_model(folder / "tiny.gguf", "llama", weight_type="Q8_0")
    return folder


@pytest.fixture
def tiny_model(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model file; what is composed of it stays beside it for the whole session, also for child processes."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tiny_folder / "cache"))
    return tiny_folder / "tiny.gguf"
