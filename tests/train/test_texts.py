from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from longspan.errors import LongspanError, ModelError
from longspan.train.texts import TextFolder, Texts


def some_texts(mark: int, count: int = 4, length: int = 8, width: int = 16) -> Texts:
    shape = (count, length)
    return Texts(
        np.full(shape, mark, np.int32),
        np.ones(shape, np.bool_),
        np.zeros(shape, np.int32),
        np.full((*shape, width), mark, np.float16),
    )


def test_texts_come_back_from_the_disk(tmp_path: Path) -> None:
    folder = TextFolder(tmp_path / "texts", "a" * 64, 1 << 20)
    folder.add(some_texts(1))
    folder.add(some_texts(2))
    again = TextFolder(tmp_path / "texts", "a" * 64, 1 << 20)
    assert [int(texts.tokens[0, 0]) for texts in again.rounds] == [1, 2]
    assert again.next_number == 3
    rows = again.rounds[1].rows(np.array([0, 3]))
    assert rows.hidden.shape == (2, 8, 16)
    assert (rows.hidden == 2).all()


def test_the_oldest_make_room(tmp_path: Path) -> None:
    size = some_texts(1).bytes
    folder = TextFolder(tmp_path / "texts", "a" * 64, int(2.5 * size))
    for mark in range(1, 6):
        folder.add(some_texts(mark))
    assert [int(texts.tokens[0, 0]) for texts in folder.rounds] == [4, 5]
    assert sum(path.stat().st_size for path in folder.directory.rglob("*.npy")) < 2.5 * size + 4096


def test_other_directories_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ModelError, match="other things"):
        TextFolder(tmp_path, "a" * 64, 1 << 20)
    TextFolder(tmp_path / "texts", "a" * 64, 1 << 20)
    with pytest.raises(ModelError, match="another model"):
        TextFolder(tmp_path / "texts", "b" * 64, 1 << 20)


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), OSError("65536 requested and 63424 written")],
    ids=["told by the system", "told by numpy"],
)
def test_a_full_disk_is_named_and_leaves_nothing_half(
    error: OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = TextFolder(tmp_path / "texts", "a" * 64, 1 << 20)
    folder.add(some_texts(1))
    save = np.save

    def full(path: Path, values: np.ndarray, allow_pickle: bool) -> None:
        if path.name == "hidden.npy":
            raise error
        save(path, values, allow_pickle=allow_pickle)

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(LongspanError, match=r"disk of .* is full.*--texts.*--disk"):
        folder.add(some_texts(2))
    assert [path.name for path in sorted(folder.directory.iterdir())] == ["round-000001", "texts.json"]
    monkeypatch.undo()
    folder.add(some_texts(3))
    assert len(TextFolder(tmp_path / "texts", "a" * 64, 1 << 20).rounds) == 2
