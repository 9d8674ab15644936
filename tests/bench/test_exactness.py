"""The command that certifies a split, over every required architecture; and that it sees what is not exact."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from longspan.bench import exactness
from longspan.bench.exactness import Certificate
from longspan.cli.certify import certify
from longspan.model.source import GgufSource
from tests.tiny_models import REQUIRED_ARCHITECTURES, write_tiny_model

THREE_STAGES = ("llama", "gemma3")


@pytest.mark.parametrize(
    ("architecture", "stages"),
    [(name, 2) for name in REQUIRED_ARCHITECTURES] + [(name, 3) for name in THREE_STAGES],
)
def test_a_split_model_is_the_whole_model(
    architecture: str, stages: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", architecture, weight_type="Q8_0")
    certify(str(path), stages=stages, json=True)
    found = msgspec.json.decode(capsys.readouterr().out, type=Certificate)
    assert found.exact
    assert found.max_abs_difference == 0.0
    assert found.rows_checked >= 500
    assert found.architecture == architecture
    assert len(found.stages) == stages
    assert [check.differing for check in found.checks] == [0, 0, 0]


def test_rows_that_are_alone_are_exact_in_float16_models_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", "llama", weight_type="F16")
    certify(str(path), stages=2, json=True)
    assert json.loads(capsys.readouterr().out)["exact"]


def test_activations_in_float16_are_seen_and_end_with_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", "llama", weight_type="Q8_0")
    with pytest.raises(SystemExit) as exit_:
        certify(str(path), stages=2, activation_dtype="float16", json=True)
    assert exit_.value.code == 1
    found = msgspec.json.decode(capsys.readouterr().out, type=Certificate)
    assert not found.exact
    assert 0.0 < found.max_abs_difference < 10.0


def test_one_wrong_bit_in_one_row_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = GgufSource(write_tiny_model(tmp_path / "tiny.gguf", "llama", weight_type="Q8_0"))
    compare = exactness._Tally.compare
    calls = 0

    def tamper(
        tally: exactness._Tally, spans: list[tuple[int, int, list[int]]], rows: list[exactness.Logits]
    ) -> None:
        nonlocal calls
        calls += 1
        if calls == 100:
            rows[0][7] = np.nextafter(rows[0][7], np.float32(np.inf))
        compare(tally, spans, rows)

    monkeypatch.setattr(exactness._Tally, "compare", tamper)
    found = exactness.certify(source, [(0, 2), (2, 4)])
    assert not found.exact
    assert sum(check.differing for check in found.checks) == 1
