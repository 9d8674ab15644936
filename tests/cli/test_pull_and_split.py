"""`longspan pull` and `longspan split`, run as a person runs them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from longspan.cli.main import main
from tests.tiny_models import write_tiny_model


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path / "cache"))
    return write_tiny_model(tmp_path / "tiny.F32.gguf", "qwen3", tied=True)


def test_pull_says_what_the_model_is(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", str(model)]) == 0
    output = capsys.readouterr()
    assert "architecture  qwen3" in output.out
    assert "layers        4, 64 wide" in output.out
    assert "sha256 of tiny.F32.gguf" in output.err
    assert main(["pull", str(model), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["model_id"], facts["layers"], facts["tied_embeddings"]) == ("tiny", 4, True)
    assert facts["bytes"] == model.stat().st_size
    assert len(facts["digest"]) == 64


@pytest.mark.parametrize(
    ("reference", "message"),
    [("nothing.gguf", "no such model: 'nothing.gguf'"), ("hf://x", "no reference to a hub file")],
)
def test_pull_of_nothing(reference: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", reference]) == 2
    error = capsys.readouterr().err
    assert error.startswith("longspan: ")
    assert message in error


def test_split_writes_a_package_and_checks_it(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "package"
    assert main(["split", str(model), "--out", str(package), "--verify"]) == 0
    output = capsys.readouterr().out
    assert f"package   {package}" in output
    assert "verified  every file" in output
    assert main(["split", str(package), "--verify", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["verified"] is True
    assert facts["artifacts"] == 7
    assert facts["package"]["layer_count"] == 4
    assert main(["pull", str(package), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == facts["package"]["digest"]


def test_split_requantises_when_asked(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["split", str(model), "--out", str(tmp_path / "small"), "--requantize", "Q4_0", "--json"]
    assert main(arguments) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["package"]["requantised"] == "Q4_0"
    assert facts["bytes"] < 0.5 * model.stat().st_size
    assert main([*arguments[:-1], "--json"]) == 2
    assert "is there already" in capsys.readouterr().err


def test_a_damaged_package_is_named(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = tmp_path / "package"
    assert main(["split", str(model), "--out", str(package)]) == 0
    path = package / "layers" / "0001.gguf"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    capsys.readouterr()
    assert main(["split", str(package), "--verify"]) == 2
    assert "sha256 of layers/0001.gguf is not the one in package.json" in capsys.readouterr().err
    shutil.rmtree(package / "layers")
    assert main(["split", str(package), "--verify"]) == 2
    assert "missing: layers/0000.gguf, layers/0001.gguf" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "say where the package shall be written"),
        (["--verify"], "say where the package shall be written"),
        (["--requantize", "Q4_0"], "say where the package shall be written"),
        (["--out", "x", "--requantize", "Q9"], "cannot be requantised to 'Q9'"),
    ],
)
def test_split_without_a_place(
    model: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["split", str(model), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_package_is_not_split_again(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = tmp_path / "package"
    assert main(["split", str(model), "--out", str(package)]) == 0
    assert main(["split", str(package), "--out", str(tmp_path / "again")]) == 2
    assert "is a layer package already" in capsys.readouterr().err
