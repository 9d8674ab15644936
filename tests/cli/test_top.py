"""`longspan top` against a server."""

from __future__ import annotations

import json

import pytest

from longspan.cli.main import main
from longspan.errors import RingError
from longspan.server import ServerOptions
from tests.observe.test_timeline import record
from tests.server.conftest import running_server, tokenizer  # noqa: F401  a fixture
from tests.server.scripted_engine import ScriptedEngine


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> ScriptedEngine:
    engine = ScriptedEngine(request.getfixturevalue("tokenizer"))
    engine.records = [record(1, 95.0, [(95.0, 3.0), (98.5, 1.5)], 100.0, trips=[0.0, 0.0])]
    return engine


def test_one_look(
    engine: ScriptedEngine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with running_server(engine, ServerOptions()) as url:
        assert main(["top", "--url", url, "--json"]) == 0
        frame = json.loads(capsys.readouterr().out)
        assert main(["top", "--url", f"{url}/"]) == 0  # no terminal: one look
        page = capsys.readouterr().out
        engine.fail = RingError("stage 1 was lost")
        assert main(["top", "--url", url, "--once"]) == 1
        assert "stage 1 was lost" in capsys.readouterr().err
    assert frame["model"] == "Tiny-Model"
    for text in ("Tiny-Model", "127.0.0.1:4242", "suspended", "generating", "50%", "25%", "12%"):
        assert text in page
    assert max(map(len, page.splitlines())) <= 100


def test_a_server_that_cannot_be_watched_is_told(
    engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--url", "http://127.0.0.1:9"]) == 1
    assert "cannot be watched" in capsys.readouterr().err
    with running_server(engine, ServerOptions(api_keys=("secret",))) as url:
        assert main(["top", "--url", url]) == 1
        assert "answered 401" in capsys.readouterr().err
        assert main(["top", "--url", url, "--api-key", "secret", "--once"]) == 0
