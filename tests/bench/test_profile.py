"""The profile's parts sum to a token's time."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from longspan.bench.stopwatch import Stopwatch, Watched
from longspan.cli.main import main
from longspan.model.storage import CACHE_VARIABLE
from tests.tiny_models import write_tiny_model


@pytest.mark.parametrize("stages", [1, 2])
def test_the_parts_sum_to_a_token(
    stages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    model = write_tiny_model(tmp_path / "tiny.gguf", "llama")
    picture = tmp_path / "profile.png"
    arguments = ["bench", "profile", str(model), "--stages", str(stages), "--tokens", "12", "--rounds", "1"]
    arguments += ["--link-delay", "20" if stages == 2 else "0", "--http", "off"]
    assert main([*arguments, "--picture", str(picture), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    parts = {(part["group"], part["name"]): part["ms"] for part in figures["parts"]}
    waited_for = sum(ms for (group, _), ms in parts.items() if group != "beside")
    assert waited_for == pytest.approx(figures["token_ms"], rel=0.5)
    assert all(ms >= 0 for ms in parts.values())
    for name in ("plan", "take the result", "token rows"):
        assert parts[("coordinator", name)] > 0
    assert parts[("beside", "detokenise")] > 0
    assert (("stage 0", "sampling") in parts) == (stages == 1)
    if stages == 2:
        # Two links between machines; the coordinator is beside the first stage.
        assert parts[("links", "on the way")] == pytest.approx(40.0, abs=20.0)
        assert figures["outside"] < 0.5
    assert picture.read_bytes().startswith(b"\x89PNG")


class Worker:
    def inner(self) -> None:
        time.sleep(0.01)

    def outer(self) -> int:
        self.inner()
        return 7


def test_a_stopwatch_counts_nested_calls_once_and_leaves_no_trace() -> None:
    watch = Stopwatch()
    before = Worker.outer
    with watch.watching([Watched("work", Worker, "outer"), Watched("work", Worker, "inner")]):
        assert Worker().outer() == 7
    assert watch.calls == {"work": 1}
    assert 0.009 < watch.seconds["work"] < 1
    assert Worker.outer is before
    Worker().inner()
    assert watch.calls == {"work": 1}
