"""`longspan keys`, and that stage and serve listen to nobody whom they do not know."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longspan.cli import main
from longspan.ring.security import SecurityOptions, load_security
from tests.tiny_models import write_tiny_model


def test_a_ring_s_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "keys")
    assert main.main(["keys", "init", folder, "--stages", "garage,attic", "--json"]) == 0
    nodes = json.loads(capsys.readouterr().out)
    assert [(node["role"], node["name"]) for node in nodes] == [
        ("coordinator", "coordinator"),
        ("stage", "garage"),
        ("stage", "attic"),
    ]
    for node in nodes:
        assert load_security(SecurityOptions(node["directory"], pins=(node["fingerprint"],))).active
    assert main.main(["keys", "add", folder, "cellar", "--days", "3"]) == 0
    assert main.main(["keys", "show", folder]) == 0
    page = capsys.readouterr().out
    assert "stage cellar" in page and nodes[1]["fingerprint"][:30] in page
    assert main.main(["keys", "init", folder]) == 2
    assert "holds an authority already" in capsys.readouterr().err
    assert main.main(["keys", "show", str(tmp_path)]) == 2


def test_a_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ring.token"
    assert main.main(["keys", "token", str(file)]) == 0
    assert file.read_text().strip() not in capsys.readouterr().out
    assert load_security(SecurityOptions(token_file=str(file))).active
    assert main.main(["keys", "token", str(file)]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (["stage", "--listen", "0.0.0.0:0", "--model"], "will not listen on 0.0.0.0"),
        (["complete", "--prompt", "x", "--ring", "192.0.2.7:7001"], "will not call 192.0.2.7"),
    ],
)
def test_nothing_is_open_to_other_machines(
    command: list[str], what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(write_tiny_model(tmp_path / "tiny.gguf", "llama"))
    assert main.main([*command, model]) == 2
    assert what in capsys.readouterr().err
