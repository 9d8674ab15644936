"""Where Longspan keeps what it made or fetched, and how files get there whole.

A file is written beside its place under a temporary name, flushed to the disk and renamed: whoever finds the name
finds the whole file. Writers of one file take turns by a lock; the second one then finds the file made.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import platformdirs

from longspan.errors import ModelError

CACHE_VARIABLE = "LONGSPAN_CACHE"


def cache_directory() -> Path:
    """The user's cache directory, or what the environment variable LONGSPAN_CACHE names."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named).expanduser().absolute() if named else platformdirs.user_cache_path("longspan")


@contextlib.contextmanager
def explained(place: Path) -> Iterator[None]:
    """Turn an operating-system error while writing under `place` into a ModelError that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = f"The disk is full; free some space, or name another place with {CACHE_VARIABLE}."
        else:
            advice = f"Make it writable, or name another place with {CACHE_VARIABLE}."
        raise ModelError(f"cannot write {error.filename or place}: {error.strerror or error}. {advice}") from error


def check_space(place: Path, needed: int) -> None:
    """Raise ModelError when fewer than `needed` bytes are free on the disk of the directory `place`."""
    free = shutil.disk_usage(place).free
    if needed > free:
        raise ModelError(
            f"{place} has {free / 1e6:.0f} MB free, {needed / 1e6:.0f} MB are needed. Free some space, or name "
            f"another place with {CACHE_VARIABLE}."
        )


@contextlib.contextmanager
def exclusive(target: Path) -> Iterator[None]:
    """Hold the lock of `target` between processes and threads; leftovers of writers that died are removed.

    File systems without locks go on without one: the rename still keeps every file whole, only work may be doubled.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{target.name}.lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
        else:
            remove_leftovers(target)
        yield


def temporary_name(target: Path) -> Path:
    """A new name beside `target` that nothing takes for the finished thing."""
    return target.parent / f".{target.name}.{secrets.token_hex(6)}.part"


def remove_leftovers(target: Path) -> None:
    """Delete temporary files and directories of `target`. Only for the holder of its lock."""
    prefix, suffix = f".{target.name}.", ".part"
    for entry in target.parent.iterdir():
        if entry.name.startswith(prefix) and entry.name.endswith(suffix):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Flush the names in `directory` to the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def temporary_directory(target: Path) -> Iterator[Path]:
    """A new directory beside `target` that is removed when the block ends, however it ends."""
    directory = temporary_name(target)
    directory.mkdir(parents=True)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def atomic_file(target: Path) -> Iterator[BinaryIO]:
    """A file to write that becomes `target` when the block ends, and vanishes when the block fails."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(target)
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        sync_directory(target.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
