"""Written texts with the hidden states that the model had: in memory, and on the disk within a bound."""

from __future__ import annotations

import dataclasses
import errno
import json
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt

from longspan.errors import LongspanError, ModelError

_NOTE = "texts.json"
_FIELDS = ("tokens", "said", "best", "hidden")


@dataclasses.dataclass(frozen=True)
class Texts:
    """Texts of one length, row by row.

    tokens: (n, length) int32. said: (n, length) bool, true for tokens of the assistant's. best: (n, length) int32,
    the token that the model finds likeliest at the next position. hidden: (n, length, width) float16, the model's
    hidden state after its output norm at each position.
    """

    tokens: npt.NDArray[np.int32]
    said: npt.NDArray[np.bool_]
    best: npt.NDArray[np.int32]
    hidden: npt.NDArray[np.float16]

    @property
    def count(self) -> int:
        """Tokens in all texts."""
        return self.tokens.size

    @property
    def bytes(self) -> int:
        """What they take on the disk."""
        return sum(getattr(self, name).nbytes for name in _FIELDS)

    def rows(self, chosen: npt.NDArray[np.intp] | slice) -> Texts:
        """Some of the texts, read into memory."""
        return Texts(*(np.ascontiguousarray(getattr(self, name)[chosen]) for name in _FIELDS))


class TextFolder:
    """Rounds of texts of one model in a directory, newest last. The oldest go when it would hold too much.

    next_number: of the round that comes next; none is given twice.
    """

    def __init__(self, directory: Path, digest: str, most_bytes: int) -> None:
        """Open or make the directory. Raises ModelError when it holds something else, or another model's texts."""
        self.directory = directory
        self._most_bytes = most_bytes
        note = directory / _NOTE
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if note.exists():
                known = json.loads(note.read_text(encoding="utf-8"))
            elif any(directory.iterdir()):
                raise ModelError(f"{directory} holds other things than texts to train on. Name another directory.")
            else:
                known = {"model": digest, "next": 1}
                note.write_text(json.dumps(known), encoding="utf-8")
            if known["model"] != digest:
                raise ModelError(f"{directory} holds texts of another model. Remove it, or name another directory.")
            self.next_number = int(known["next"])
        except OSError as error:
            raise self._explained(error) from error
        except (ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{note} is damaged ({error}). Remove {directory}.") from error
        self._digest = digest
        self._rounds: list[tuple[Path, Texts]] = []
        for folder in sorted(directory.glob("round-*")):
            self._open(folder)

    @property
    def rounds(self) -> list[Texts]:
        """What is there, oldest first; hidden states stay on the disk until they are looked at."""
        return [texts for _, texts in self._rounds]

    def add(self, texts: Texts) -> None:
        """Write a round. Raises LongspanError, with nothing half-written left, when the disk is full."""
        while self._rounds and self._held() + texts.bytes > self._most_bytes:
            folder, _ = self._rounds.pop(0)
            shutil.rmtree(folder, ignore_errors=True)
        final = self.directory / f"round-{self.next_number:06d}"
        unfinished = self.directory / f"unfinished-{final.name}"
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            for name in _FIELDS:
                np.save(unfinished / f"{name}.npy", getattr(texts, name), allow_pickle=False)
            unfinished.rename(final)
            self.next_number += 1
            note = json.dumps({"model": self._digest, "next": self.next_number})
            (self.directory / _NOTE).write_text(note, encoding="utf-8")
        except OSError as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise self._explained(error) from error
        self._open(final)

    def _held(self) -> int:
        return sum(texts.bytes for texts in self.rounds)

    def _open(self, folder: Path) -> None:
        try:
            arrays = [np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in _FIELDS]
        except (OSError, ValueError) as error:
            raise ModelError(f"{folder} is damaged ({error}). Remove it.") from error
        # Tokens are looked at all the time; only the hidden states are large.
        tokens, said, best, hidden = arrays
        self._rounds.append((folder, Texts(np.array(tokens), np.array(said), np.array(best), hidden)))

    def _explained(self, error: OSError) -> LongspanError:
        # numpy reports a write that ended early without a number.
        if error.errno in (None, errno.ENOSPC, errno.EDQUOT):
            return LongspanError(
                f"the disk of {self.directory} is full ({error.strerror or error}). Free some space, name another "
                "place with --texts, or let texts take less of it with --disk."
            )
        return LongspanError(
            f"texts cannot be kept in {self.directory}: {error.strerror or error}. Name another place with --texts."
        )
