from __future__ import annotations

from pathlib import Path

import pytest

from longspan.errors import ModelError
from longspan.model.package_source import PackageSource
from longspan.model.progress import SilentProgress
from longspan.model.reference import resolve
from longspan.model.source import GgufSource
from longspan.model.split import split_model


def test_a_path(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = resolve(str(tiny_path))
    assert isinstance(source, GgufSource)
    assert source.description.model_id == "tiny-llama"
    monkeypatch.setenv("HOME", str(tiny_path.parent))
    assert resolve(f"~/{tiny_path.name}").path == tiny_path


def test_a_package(tiny: GgufSource, tmp_path: Path) -> None:
    split_model(tiny, tmp_path / "package", requantise=None, progress=SilentProgress())
    assert isinstance(resolve(str(tmp_path / "package")), PackageSource)


def test_the_demo_has_its_own_name(demo: Path) -> None:
    assert demo.name == "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("", "is no model"),
        ("  ", "is no model"),
        ("a\0b", "is no model"),
        ("demmo", "no such model: 'demmo' is neither a file nor a name. Give demo, demo-gemma, a path"),
        ("/no/such/model.gguf", "no such model"),
        ("x" * 5000, "cannot be read: File name too long"),
        ("hf://owner/model.gguf", "no reference to a hub file"),
    ],
)
def test_what_is_no_model(reference: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        resolve(reference)


def test_a_directory_that_is_no_package(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"directory without package\.json"):
        resolve(str(tmp_path))


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ModelError, match="is not a GGUF file"):
        resolve(str(tmp_path / "notes.txt"))
