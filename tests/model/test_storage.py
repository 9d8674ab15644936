from __future__ import annotations

import errno
import fcntl
import threading
import time
from pathlib import Path

import pytest

from longspan.errors import ModelError
from longspan.model import storage
from longspan.model.storage import atomic_file, cache_directory, exclusive, explained, temporary_directory


def test_the_cache_is_where_the_variable_says(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_directory() == cache
    monkeypatch.setenv(storage.CACHE_VARIABLE, "~/somewhere")
    assert cache_directory() == Path.home() / "somewhere"
    monkeypatch.setenv(storage.CACHE_VARIABLE, "")
    assert cache_directory().name == "longspan"


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file"
    with atomic_file(target) as file:
        file.write(b"half")
        file.flush()
        assert not target.exists()
        file.write(b" and half")
    assert target.read_bytes() == b"half and half"
    with pytest.raises(RuntimeError), atomic_file(target) as file:
        file.write(b"other")
        raise RuntimeError
    assert target.read_bytes() == b"half and half"
    assert [path.name for path in target.parent.iterdir()] == ["file"]


def test_a_temporary_directory_is_gone_afterwards(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), temporary_directory(tmp_path / "target") as directory:
        (directory / "file").write_text("x")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_writers_of_one_file_take_turns(tmp_path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        with exclusive(tmp_path / "target"):
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.01)
            inside.remove(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8


def test_the_holder_of_the_lock_removes_leftovers_of_its_file_only(tmp_path: Path) -> None:
    left, other = tmp_path / ".target.00.part", tmp_path / ".target2.00.part"
    left.mkdir()
    (left / "file").write_text("x")
    other.write_text("x")
    with exclusive(tmp_path / "target"):
        assert not left.exists()
        assert other.exists()


def test_a_file_system_without_locks_still_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with exclusive(tmp_path / "target"), atomic_file(tmp_path / "target") as file:
        file.write(b"x")
    assert (tmp_path / "target").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("number", "advice"), [(errno.ENOSPC, "The disk is full"), (errno.EACCES, "Make it writable")]
)
def test_errors_of_the_system_say_what_to_do(tmp_path: Path, number: int, advice: str) -> None:
    with pytest.raises(ModelError, match=f"cannot write .*{advice}.*LONGSPAN_CACHE"), explained(tmp_path):
        raise OSError(number, "broken", str(tmp_path))
