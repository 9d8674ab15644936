"""Which build of Longspan an interpreter runs: `python -m longspan.bench.compare.build` says it as JSON."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path

import msgspec

import longspan

_LIBRARIES = ("xllamacpp", "numpy", "msgspec", "uvloop", "starlette", "uvicorn")


class Build(msgspec.Struct, frozen=True):
    """version: of Longspan. digest: sha256 over its source files. commit: of its repository, "" without one;
    "+" behind it: with changes that are not in it. libraries: versions of what matters for speed."""

    version: str
    digest: str
    commit: str
    python: str
    libraries: dict[str, str]


def this_build() -> Build:
    """The build that this interpreter runs."""
    root = Path(longspan.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return Build(
        longspan.__version__,
        digest.hexdigest(),
        _commit(root),
        platform.python_version(),
        {name: importlib.metadata.version(name) for name in _LIBRARIES},
    )


def _commit(folder: Path) -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        commit = git("rev-parse", "--short=12", "HEAD")
        return commit + "+" * bool(commit and git("status", "--porcelain", "--", str(folder)))
    except OSError:  # no git here
        return ""


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(this_build()))
