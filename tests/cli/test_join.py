"""`longspan serve --join` and `longspan stage --join` as processes: a ring without a list of addresses."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import urllib.request
from pathlib import Path

import pytest

from longspan.cli.main import main
from longspan.model.storage import CACHE_VARIABLE
from tests.cli.test_serve import command
from tests.tiny_models import write_tiny_model

SMALL = ("--threads", "1", "--slots", "2", "--context", "64", "--quiet", "--port", "0")


def ring_of(line: str) -> list[tuple[str, int, int]]:
    """State, process and first layer of every stage of the server that said this line."""
    with urllib.request.urlopen(line.removeprefix("listening on ") + "/ring", timeout=10) as answer:
        return [(stage["state"], stage["pid"], stage["start"]) for stage in json.load(answer)["stages"]]


def answer_of(line: str) -> str:
    body = {"model": "tiny", "prompt": [40, 41, 42, 80], "max_tokens": 8, "temperature": 0}
    request = urllib.request.Request(
        line.removeprefix("listening on ") + "/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(json.load(answer)["choices"][0]["text"])


def test_stages_outlive_their_coordinator_and_serve_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf", "llama", weight_type="Q8_0")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    serve = ("serve", str(model), "--join", address, "--stages", "2", *SMALL)
    with contextlib.ExitStack() as stack:
        for name in ("attic", "cellar"):
            monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / name))
            _, line = stack.enter_context(command("stage", "--join", address, "--name", name, "--threads", "1"))
            assert line.startswith("stage listening on ")
        monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "coordinator"))
        with command(*serve) as (process, line):
            before = ring_of(line)
            assert [(state, start) for state, _, start in before] == [("ready", 0), ("ready", 2)]
            answer = answer_of(line)
            os.kill(process.pid, signal.SIGKILL)
        with command(*serve) as (_, line):
            assert ring_of(line) == before
            assert answer_of(line) == answer


def test_a_name_that_is_none_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf", "llama", weight_type="Q8_0")
    with command("stage", "--model", str(model), "--join", "127.0.0.1:1", "--name", "../attic") as (process, _):
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 2
    assert "'../attic' is no name for a stage" in errors


def test_joining_and_calling_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "demo", "--join", "127.0.0.1:1", "--ring", "127.0.0.1:2"]) == 2
    assert "not both" in capsys.readouterr().err
