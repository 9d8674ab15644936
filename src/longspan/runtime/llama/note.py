"""Remembers what the exactness self-check of a stage file found on this machine, so that it runs once."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from longspan.model.storage import cache_directory
from longspan.runtime.llama.exactness import Exactness


def _path(library: Path, stage_file: Path, threads: int, max_rows: int) -> Path:
    parts = [str(library), str(library.stat().st_mtime_ns), str(stage_file), str(stage_file.stat().st_mtime_ns)]
    key = hashlib.sha256("\0".join([*parts, str(threads), str(max_rows)]).encode()).hexdigest()[:32]
    return cache_directory() / "exactness" / f"{key}.json"


def recall(library: Path, stage_file: Path, threads: int, max_rows: int) -> Exactness | None:
    """What was found before for the same library, file, threads and batch size; None when there is none."""
    try:
        note = msgspec.json.decode(_path(library, stage_file, threads, max_rows).read_bytes(), type=Exactness)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return None
    return note if 2 <= note.exact_rows <= max_rows + 1 else None


def remember(library: Path, stage_file: Path, threads: int, max_rows: int, exactness: Exactness) -> None:
    """Write down what was found; a cache that cannot be written only costs the measurement next time."""
    path = _path(library, stage_file, threads, max_rows)
    temporary = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(msgspec.json.encode(exactness))
        temporary.replace(path)
    except OSError:
        return
