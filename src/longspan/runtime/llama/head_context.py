"""A draft model in a llama.cpp context of its own.

One layer, all slots in one shared cache, because nothing here has to be exact. Every slot's rows follow a prefix
that is the same for all (see `model.mtp_head`), so the cells of the prefix are held once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from longspan.errors import LongspanError
from longspan.llamacpp.library import Library
from longspan.model.draft_model import DraftModel
from longspan.runtime.llama.context import LlamaContext
from longspan.runtime.llama.graph_tap import GraphTap

MAX_ROWS = 512
"""Rows of one call."""
_MOST_TOKEN_HALVES = 4096
"""Tokens whose half of the input row is kept: text repeats its tokens."""

Array = npt.NDArray[np.float32]


class HeadContext:
    """lengths: rows that each slot holds behind the prefix. A slot never holds more than `cells`."""

    def __init__(self, library: Library, model: DraftModel, *, slots: int, cells: int, threads: int) -> None:
        self._model = model
        self.lengths = [0] * slots
        self._token_halves: dict[int, Array] = {}
        # numpy's matrix products are small here; its own threads would only take the cores from llama.cpp's.
        self._blas = ThreadpoolController().select(user_api="blas")
        self._tap = GraphTap(library, "result_norm", model.width, slots, input=model.input_tensor)
        self._context = LlamaContext(
            library,
            model.file,
            slots=slots,
            cells=-(-(slots * cells + len(model.prefix_hidden) + MAX_ROWS) // slots),
            threads=threads,
            max_rows=MAX_ROWS,
            max_outputs=slots,
            callback=self._tap.callback,
            unified=True,
            by_token=model.input_tensor is not None,
        )
        self._prefix = 0
        if len(model.prefix_hidden):
            try:
                self._enter_prefix(model, slots)
            except BaseException:
                self._context.close()
                raise

    def _enter_prefix(self, model: DraftModel, slots: int) -> None:
        """Let the prefix take the first cells of slot 0 for good, and the other slots share them."""
        count = len(model.prefix_hidden)
        self.run(model.prefix_tokens[1:].tolist(), model.prefix_hidden, [0] * count, [count - 1])
        self._prefix, self.lengths[0] = count, 0
        for slot in range(1, slots):
            self._context.copy(0, slot, count)

    def close(self) -> None:
        """Release model and context."""
        self._context.close()

    def trim(self, slot: int, rows: int) -> None:
        """Keep the first `rows` rows of a slot."""
        if self.lengths[slot] > rows:
            self._context.trim(slot, self._prefix + rows)
            self.lengths[slot] = rows

    def fork(self, source: int, target: int) -> None:
        """Let the empty slot `target` begin with all rows of `source`; the rows are not copied."""
        self._context.share(source, target)
        self.lengths[target] = self.lengths[source]

    def drop_oldest(self, slot: int, rows: int) -> None:
        """Remove the first `rows` rows of a slot; the later ones move up."""
        self._context.remove(slot, self._prefix, self._prefix + rows)
        self.lengths[slot] -= rows

    def run(
        self, tokens: Sequence[int], hidden: Array, slots: Sequence[int], outputs: Sequence[int]
    ) -> tuple[Array, Array]:
        """Put rows behind what their slots hold; gives logits and hidden states of the rows in `outputs`.

        tokens: (n,), hidden: (n, width) the states before them, slots: (n,), at most MAX_ROWS rows.
        outputs: rows, ascending, at most as many as there are slots.
        Raises LongspanError when llama.cpp refuses; then the slots have to be trimmed to what they held before.
        """
        positions = []
        for slot in slots:
            positions.append(self._prefix + self.lengths[slot])
            self.lengths[slot] += 1
        marks = np.zeros(len(tokens), np.int8)
        marks[list(outputs)] = 1
        rows = self._fuse(tokens, hidden)
        at, ids = np.array(positions, np.int32), np.array(slots, np.int32)
        for _ in range(2):  # the tap may have to look at names once more
            self._tap.prepare(rows, 1)
            failure = self._context.decode(rows, at, ids, marks)
            if failure:
                raise LongspanError(f"the MTP head: {failure}")
            if self._tap.finish(len(outputs), 1):
                logits = np.stack([self._context.logits(row) for row in outputs])
                return logits, self._tap.buffer[: len(outputs)].copy()
            for slot, start in _starts(slots, positions).items():
                self._context.trim(slot, start)
        raise LongspanError("the MTP head: llama.cpp did not compute result_norm")

    def _fuse(self, tokens: Sequence[int], hidden: Array) -> Array:
        """Input rows of the head, (n, width)."""
        known = self._token_halves
        missing = [token for token in dict.fromkeys(tokens) if token not in known]
        with self._blas.limit(limits=1):
            if missing:
                if len(known) + len(missing) > _MOST_TOKEN_HALVES:
                    known.clear()
                    missing = list(dict.fromkeys(tokens))
                halves = self._model.fusion.token_half(self._model.embedding.rows(np.array(missing, np.int32)))
                known.update(zip(missing, halves, strict=True))
            rows = self._model.fusion.hidden_half(hidden)
        for row, token in zip(rows, tokens, strict=True):
            row += known[token]
        return rows


def _starts(slots: Iterable[int], positions: Iterable[int]) -> dict[int, int]:
    """The first position of each slot."""
    starts: dict[int, int] = {}
    for slot, position in zip(slots, positions, strict=True):
        starts.setdefault(slot, position)
    return starts
