"""`longspan plan`, and `longspan serve --lock`, as a person uses them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longspan.cli.main import main
from longspan.model.storage import CACHE_VARIABLE
from longspan.placement.lock import decode_lock
from tests.cli.test_serve import command
from tests.tiny_models import write_tiny_model

NODES = """
rtt_ms = 20
[[node]]
name = "attic"
memory = "16 GiB"
reserve = "2 GiB"
layer_ms = 0.3
[[node]]
name = "cellar"
memory = "{cellar}"
layer_ms = 0.1
layers = "2-4"
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return write_tiny_model(tmp_path / "tiny.gguf", "llama", weight_type="Q8_0")


def node_file(folder: Path, cellar: str = "1 GiB") -> str:
    path = folder / "nodes.toml"
    path.write_text(NODES.format(cellar=cellar))
    return str(path)


def test_a_plan_says_who_what_how_fast_and_why(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["plan", str(model), "--nodes", node_file(tmp_path), "--context", "256"]) == 0
    shown = capsys.readouterr().out
    assert all(len(line) <= 100 for line in shown.splitlines())
    assert [line.split()[:2] for line in shown.splitlines()[2:4]] == [["attic", "0-2"], ["cellar", "2-4"]]
    assert "14.0 GiB" in shown
    assert "tokens per second" in shown
    assert "limited by" in shown
    assert "links: " in shown


def test_a_plan_as_json_and_its_lock(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = tmp_path / "ring.lock"
    arguments = [
        "plan",
        str(model),
        "--nodes",
        node_file(tmp_path),
        "--context",
        "256",
        "--lock",
        str(lock),
        "--json",
    ]
    assert main(arguments) == 0
    placement = json.loads(capsys.readouterr().out)
    assert [(stage["node"], stage["start"], stage["end"]) for stage in placement["stages"]] == [
        ("attic", 0, 2),
        ("cellar", 2, 4),
    ]
    assert placement["prediction"]["plain"] > 0
    written = decode_lock(lock.read_bytes())
    assert (written.digest, written.ranges) == (placement["digest"], ((0, 2), (2, 4)))


def test_what_does_not_fit_is_refused_with_exit_code_2(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(model), "--nodes", node_file(tmp_path, "60 MiB"), "--context", "256"]) == 2
    error = capsys.readouterr().err
    assert "does not fit" in error
    assert "cellar lacks" in error


@pytest.mark.parametrize("options", [[], ["--nodes", "x", "--ring", "127.0.0.1:1"]])
def test_nodes_or_a_ring(model: Path, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(model), *options]) == 2
    assert "--nodes FILE describes machines" in capsys.readouterr().err


def test_a_node_file_that_is_not_there(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(model), "--nodes", "no-such-file"]) == 2
    assert "cannot read the node file no-such-file" in capsys.readouterr().err


def test_running_stages_are_asked_and_their_lock_is_served(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = str(tmp_path / "ring.lock")
    with command("stage", "--model", str(model), "--threads", "1") as (_, line):
        address = line.removeprefix("stage listening on ")
        arguments = ["plan", str(model), "--ring", address, "--context", "64", "--slots", "1"]
        assert main([*arguments, "--lock", lock, "--json"]) == 0
        (stage,) = json.loads(capsys.readouterr().out)["stages"]
        assert (stage["node"], stage["address"], stage["end"]) == (address, address, 4)
        serve = ["serve", str(model), "--lock", lock, "--context", "64", "--slots", "1", "--port", "0"]
        with command(*serve) as (_, served):
            assert served.startswith("listening on http://")
        other = write_tiny_model(tmp_path / "other.gguf", "llama", weight_type="Q8_0", seed=5)
        assert main(["serve", str(other), *serve[2:]]) == 3
        assert "longspan: the ring is not the locked one: the lock is of the model" in capsys.readouterr().err
