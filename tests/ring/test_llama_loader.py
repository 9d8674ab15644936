from __future__ import annotations

from pathlib import Path

import pytest

from longspan.model.source import GgufSource
from longspan.ring.llama_loader import LlamaLoader, default_threads
from longspan.ring.loader import StageLoader
from longspan.ring.messages import Assignment


def test_opens_the_layers_that_were_assigned(tiny_model: Path) -> None:
    source = GgufSource(tiny_model)
    loader: StageLoader = LlamaLoader(source, threads=1)
    assert (loader.digest, loader.layers, loader.width) == (source.digest, 4, 64)
    assert loader.dtypes == ("float32", "float16")
    said: list[str] = []
    runtime = loader.load(Assignment(1, 2, 1, 4, 4, None, 3, 64, "float32"), said.append)
    capacity = runtime.capacity()
    assert capacity.slots == 3
    assert capacity.cells_per_slot == 64
    assert capacity.exact_rows > 2
    runtime.close()
    assert said == ["composing layers 1-4", "loading layers 1-4 and checking exactness"]


def test_stages_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert [default_threads(stages) for stages in (1, 2, 3, 8, 100)] == [8, 4, 2, 1, 1]
