"""Models for the tests of this room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from longspan.model.reference import resolve
from longspan.model.source import GgufSource
from longspan.model.storage import CACHE_VARIABLE
from tests.tiny_models import write_tiny_model


@pytest.fixture(scope="session")
def demo() -> Path:
    """The demo model's file, fetched into the user's own cache once a machine."""
    return resolve("demo").path


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache directory for each test."""
    directory = tmp_path / "cache"
    monkeypatch.setenv(CACHE_VARIABLE, str(directory))
    return directory


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama model of four layers with an output matrix of its own."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny-llama.F32.gguf", "llama", tied=False)


@pytest.fixture
def tiny(tiny_path: Path) -> GgufSource:
    return GgufSource(tiny_path)


class Recorder:
    """A progress that counts. lines: description and total of each piece of work."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, int | None]] = []
        self.done = 0
        self.open = False

    def start(self, description: str, total_bytes: int | None) -> None:
        assert not self.open, "the piece of work before was not finished"
        self.lines.append((description, total_bytes))
        self.done = 0
        self.open = True

    def advance(self, count: int) -> None:
        assert self.open
        self.done += count

    def finish(self) -> None:
        self.open = False


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    yield recorder
    assert not recorder.open, "a piece of work was never finished"
