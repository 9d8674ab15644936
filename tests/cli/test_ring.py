"""`longspan ring …` against a server."""

from __future__ import annotations

import json

import pytest

from longspan.cli.main import main
from longspan.server import ServerOptions
from tests.server.conftest import running_server, tokenizer  # noqa: F401  a fixture
from tests.server.scripted_engine import ScriptedEngine


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> ScriptedEngine:
    return ScriptedEngine(request.getfixturevalue("tokenizer"))


def test_who_is_there_and_who_is_sent_away(engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.members.append("a/b c")
    with running_server(engine, ServerOptions(api_keys=("secret",))) as url:
        server = ["--url", f"{url}/", "--api-key", "secret"]
        assert main(["ring", "show", *server]) == 0
        page = capsys.readouterr().out
        assert main(["ring", "show", *server, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert main(["ring", "remove", "attic", *server]) == 0
        assert capsys.readouterr().out == "stage attic is removed\n"
        assert main(["ring", "remove", "garage", *server, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"removed": "garage"}
        assert engine.members == ["cellar", "a/b c"]
        assert main(["ring", "remove", "attic", *server]) == 1
        assert "no stage 'attic' has joined; there is cellar" in capsys.readouterr().err
        # A name travels as one piece of the path, whatever is in it.
        assert main(["ring", "remove", "a/b c", *server]) == 0
        assert engine.members == ["cellar"]
        assert main(["ring", "remove", "cellar", "--url", url]) == 1
        assert "answered 401" in capsys.readouterr().err
    assert [line.split() for line in page.splitlines() if "192.0.2." in line] == [
        ["garage", "0", "192.0.2.0:7000"],
        ["attic", "1", "192.0.2.1:7000"],
        ["cellar", "spare", "192.0.2.2:7000"],
        ["a/b", "c", "spare", "192.0.2.3:7000"],
    ]
    assert "127.0.0.1:4242" in page
    assert [member["name"] for member in shown["members"]][:2] == ["garage", "attic"]


def test_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ring", "show", "--url", "http://127.0.0.1:9"]) == 1
    assert "cannot be asked" in capsys.readouterr().err
    assert main(["ring", "remove", "attic", "--url", "nothing"]) == 1
