from __future__ import annotations

from pathlib import Path

import pytest

from longspan.bench import heal
from longspan.model.storage import CACHE_VARIABLE
from tests.tiny_models import write_tiny_model


async def test_every_phase_of_a_healing_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    model = write_tiny_model(tmp_path / "tiny.gguf", "llama", weight_type="Q8_0")
    monkeypatch.setattr(heal, "ANSWER_TOKENS", 512)
    monkeypatch.setattr(heal, "PROMPT_TOKENS", 8)
    monkeypatch.setattr(heal, "APART_SECONDS", 0.0)
    figures = await heal.bench_heal(str(model), stages=2, streams=2, rounds=1, threads=1, report=lambda text: None)
    (entry,) = figures.rounds
    for phase in (entry.detect, entry.relaunch, entry.load, entry.replay):
        assert 0 < phase < 30
    assert entry.pause <= entry.detect + entry.relaunch + entry.load + entry.replay + 0.5
    assert entry.pause >= entry.relaunch + entry.load
    assert figures.beyond_load == pytest.approx(entry.pause - entry.load)
