"""`longspan serve`, `longspan stage` and `longspan demo` as processes."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from longspan.cli.local_server import LocalServer, local_server
from longspan.cli.main import main
from longspan.errors import LongspanError

README = Path(__file__).parent.parent.parent / "README.md"

SMALL = ("--threads", "1", "--slots", "2", "--context", "256")


@contextlib.contextmanager
def command(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `longspan ARGUMENTS`, and give the process and its first line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "longspan", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with local_server(["demo", "--stages", "2", "--port", "0", "--quiet", *SMALL]) as running:
        yield running


def test_a_served_model_is_listed_and_ready(server: LocalServer) -> None:
    models = json.loads(server.get("/v1/models"))
    assert [model["id"] for model in models["data"]] == ["SmolLM2-135M-Instruct"]
    ring = json.loads(server.get("/ring"))
    assert [(stage["start"], stage["end"], stage["state"]) for stage in ring["stages"]] == [
        (0, 15, "ready"),
        (15, 30, "ready"),
    ]


def test_the_readmes_client_works(server: LocalServer) -> None:
    found = re.search(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None
    script = found[1].replace("http://127.0.0.1:8080", server.url)
    assert script != found[1]
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip()


def test_an_unknown_path_is_an_error_of_the_client(server: LocalServer) -> None:
    with pytest.raises(LongspanError, match="404"):
        server.get("/nothing")


def test_a_server_that_cannot_start_says_so() -> None:
    with pytest.raises(LongspanError, match="exit code 2"), local_server(["no-such.gguf"]):
        raise AssertionError("it cannot listen")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_ends_well_on_a_signal(number: signal.Signals) -> None:
    with command("serve", "demo", "--port", "0", *SMALL) as (process, line):
        assert re.fullmatch(r"listening on http://127\.0\.0\.1:\d+", line)
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "0-30" in errors
    assert "Traceback" not in errors


def test_a_port_in_use_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "demo", "--port", str(port), *SMALL]) == 2
        assert f"port {port} on 127.0.0.1 is in use" in capsys.readouterr().err
        assert main(["stage", "--model", "demo", "--listen", f"127.0.0.1:{port}"]) == 2
        assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_stages_elsewhere_give_the_same_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    request = ["complete", "demo", "--prompt", "Once upon a time", "--max-tokens", "8", "--json", *SMALL]
    assert main(request) == 0
    whole = json.loads(capsys.readouterr().out)
    stage = ("stage", "--model", "demo", "--threads", "1", "--listen", "127.0.0.1:0")
    with command(*stage) as (first, first_line), command(*stage) as (second, second_line):
        addresses = [line.removeprefix("stage listening on ") for line in (first_line, second_line)]
        assert main([*request, "--ring", ",".join(addresses)]) == 0
        split = json.loads(capsys.readouterr().out)
        # The stages outlive that coordinator. The next one runs the first half of the layers itself.
        assert main([*request, "--hold-first-stage", "--ring", addresses[0]]) == 0
        held = json.loads(capsys.readouterr().out)
        for process in (first, second):
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=20)
            assert process.returncode == 0
    assert split["tokens"] == whole["tokens"] == held["tokens"]


def test_the_demo_answers(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--max-tokens", "8", "--link-delay", "5", "--json"]) == 0
    result = json.loads(capfd.readouterr().out)
    assert result["answer"] and result["tokens"] == 8 and result["finish_reason"] == "length"
    assert result["tokens_per_second"] > 0
    assert len({stage["pid"] for stage in result["ring"]["stages"]}) == 2
    # At least once around the ring before the first token.
    assert result["time_to_first_token_seconds"] > 0.010


def test_the_demo_shows_answer_figures_and_ring(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--max-tokens", "4", "--link-delay", "0", "--question", "Hello?"]) == 0
    page = capfd.readouterr().out
    for text in ("› Hello?", "tokens per second", "time to first token", "0-15", "15-30"):
        assert text in page
