"""sha256 of model files, remembered so that a large file is read once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from longspan.errors import ModelError
from longspan.model.progress import Progress
from longspan.model.storage import atomic_file, cache_directory

_CHUNK = 4 << 20


def _identity(paths: Sequence[Path]) -> list[list[str | int]]:
    found: list[list[str | int]] = []
    for path in paths:
        state = path.stat()
        found.append([str(path.resolve()), state.st_size, state.st_mtime_ns, state.st_ino])
    return found


def _note(paths: Sequence[Path]) -> Path:
    name = hashlib.sha256("\n".join(str(path.resolve()) for path in paths).encode()).hexdigest()[:32]
    return cache_directory() / "digests" / f"{name}.json"


def compute_digest(paths: Sequence[Path], advance: Callable[[int], None]) -> str:
    """sha256 (hex) over the bytes of the files, one after the other; `advance` is told of every piece read.

    Raises ModelError when one cannot be read.
    """
    digest = hashlib.sha256()
    try:
        for path in paths:
            with path.open("rb", buffering=0) as file:
                while data := file.read(_CHUNK):
                    digest.update(data)
                    advance(len(data))
    except OSError as error:
        raise ModelError(f"{error.filename or paths[0]} cannot be read: {error.strerror or error}.") from error
    return digest.hexdigest()


def remember_digest(paths: Sequence[Path], digest: str) -> None:
    """Note the digest of files as they are now. A cache that cannot be written only costs time later."""
    note = _note(paths)
    try:
        with atomic_file(note) as file:
            file.write(json.dumps({"files": _identity(paths), "sha256": digest}).encode())
    except OSError:
        return


def remembered_digest(paths: Sequence[Path]) -> str | None:
    """The noted digest, if path, size, time and inode of every file are as they were then."""
    try:
        noted = json.loads(_note(paths).read_bytes())
        if noted["files"] == _identity(paths) and len(noted["sha256"]) == 64:
            return str(noted["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # No note, or a damaged one: the caller reads the files.
    return None


def file_digest(paths: Sequence[Path], progress: Progress) -> str:
    """sha256 over the files; noted, so that the files are read once. Raises ModelError when they cannot be."""
    noted = remembered_digest(paths)
    if noted is not None:
        return noted
    try:
        identity = _identity(paths)
        progress.start(f"sha256 of {paths[0].name}", sum(path.stat().st_size for path in paths))
        try:
            digest = compute_digest(paths, progress.advance)
        finally:
            progress.finish()
        if _identity(paths) != identity:
            raise ModelError(f"{paths[0]} changed while it was read. Try again when it is complete.")
    except OSError as error:
        raise ModelError(f"{error.filename or paths[0]} cannot be read: {error.strerror or error}.") from error
    remember_digest(paths, digest)
    return digest
