from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from longspan.cli.main import main


def test_without_pytorch_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec

    def missing(name: str, *more: Any) -> Any:
        return None if name == "torch" else find(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", missing)
    assert main(["train-mtp", "demo", "--out", "head.safetensors"]) == 1
    assert "pip install 'longspan[train]'" in capsys.readouterr().err


def test_it_trains_or_measures(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert main(["train-mtp", "demo"]) == 2
    assert "--out HEAD" in capsys.readouterr().err
    assert main(["train-mtp", "demo", "--evaluate", "carried", "--resume", "carried"]) == 2
    assert "--resume" in capsys.readouterr().err
