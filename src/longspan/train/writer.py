"""Fills folders with texts, in the time that it gets."""

from __future__ import annotations

import time

from longspan.train.conversations import Conversations
from longspan.train.setting import Setting
from longspan.train.texts import TextFolder
from longspan.train.writing import write_texts

_SHORTEST = 128
"""Tokens that a text has at least, whatever time there is: in the first words of an answer, much can come next."""


class Writer:
    """seconds: spent on writing. tokens: written."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self._setting = setting
        self._seed = seed
        self.seconds = 0.0
        self.tokens = 0

    def write(self, folder: TextFolder, seconds: float, *, salt: int, most_rows: int | None = None) -> None:
        """Write one round, of shorter texts if `seconds` would not be enough. salt: no two folders share texts."""
        setting = self._setting
        started = time.monotonic()
        rows = setting.base.most_rows(setting.length)
        rows = rows if most_rows is None else min(rows, most_rows)
        seed = (self._seed << 40) + (salt << 32) + folder.next_number & (1 << 63) - 1
        texts = write_texts(
            setting.base,
            Conversations(setting.turns, setting.tokenizer, rows, seed),
            rows,
            setting.length,
            seed=seed,
            least=min(_SHORTEST, setting.length),
            enough=lambda: time.monotonic() - started > seconds,
        )
        setting.base.close()
        folder.add(texts)
        self.seconds += time.monotonic() - started
        self.tokens += texts.count
