"""One llama.cpp model with one context, and the batch buffers that live as long as it does."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_float, c_int8, c_int32
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from longspan.errors import LongspanError, ModelError
from longspan.llamacpp.library import Library
from longspan.llamacpp.structs import Batch
from longspan.runtime.base import Activations

_FLASH_ATTENTION_AUTO = -1
_MOST_VIEWS = 1024


class LlamaContext:
    """A loaded stage file with `slots` KV streams of `cells` positions each.

    Rows come in as embeddings; with `by_token` the batch holds placeholders, and the callback writes the rows over
    a tensor of the graph. At most `max_rows` rows a call, of which `max_outputs` may be marked as outputs. Not
    thread-safe.
    """

    def __init__(
        self,
        library: Library,
        path: Path,
        *,
        slots: int,
        cells: int,
        threads: int,
        max_rows: int,
        max_outputs: int,
        callback: Any = None,
        unified: bool = False,
        by_token: bool = False,
    ) -> None:
        self._library = library
        self._callback = callback
        self._by_token = by_token
        self._model: int | None = None
        self._context: int | None = None
        self._keeps_hidden = False
        self._logits: dict[int, npt.NDArray[np.float32]] = {}
        library.explain()
        self._model = library.llama_model_load_from_file(str(path).encode(), library.llama_model_default_params())
        if not self._model:
            raise ModelError(f"llama.cpp cannot load {path}: {library.explain() or 'no reason given'}")
        self.width: int = library.llama_model_n_embd(self._model)
        vocabulary = library.llama_model_get_vocab(self._model)
        self.vocabulary: int = library.llama_vocab_n_tokens(vocabulary)
        self._context = self._open(slots, cells, threads, max_rows, max_outputs, unified)
        self.cells: int = library.llama_n_ctx_seq(self._context)
        # llama.cpp takes no larger batch than the context it was asked for, and ends the process for one.
        self.max_rows: int = min(max_rows, library.llama_n_batch(self._context))
        self._memory = library.llama_get_memory(self._context)
        self._allocate(max_rows)

    def _open(self, slots: int, cells: int, threads: int, max_rows: int, max_outputs: int, unified: bool) -> int:
        parameters = self._library.llama_context_default_params()
        parameters.n_ctx = slots * cells
        parameters.n_seq_max = slots
        parameters.n_batch = parameters.n_ubatch = max_rows
        parameters.n_outputs_max = max_outputs
        parameters.n_outputs_max_per_seq = max_outputs
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.flash_attn_type = _FLASH_ATTENTION_AUTO
        # Separate streams keep the cells of a sequence in order whatever was trimmed before: rows stay bit-exact.
        parameters.kv_unified = unified
        # A sliding-window cache forgets positions that a trim may need again.
        parameters.swa_full = True
        if self._callback is not None:
            parameters.cb_eval = ctypes.cast(self._callback, ctypes.c_void_p)
        context: int | None = self._library.llama_init_from_model(self._model, parameters)
        if not context:
            reason = self._library.explain() or "not enough memory?"
            self.close()
            raise LongspanError(
                f"llama.cpp cannot make a context of {slots} slots with {cells} positions each: {reason}. "
                "Use fewer slots (--slots) or a shorter context (--context)."
            )
        return context

    def _allocate(self, max_rows: int) -> None:
        self._positions = np.zeros(max_rows, np.int32)
        self._sequence_ids = np.zeros(max_rows, np.int32)
        self._counts = np.ones(max_rows, np.int32)
        self._outputs = np.zeros(max_rows, np.int8)
        self._own_pointers = _addresses(self._sequence_ids, np.arange(max_rows))
        self._sequence_pointers = self._own_pointers.copy()
        self._batch = Batch()
        if self._by_token:
            self._tokens = np.zeros(max_rows, np.int32)
            self._batch.token = self._tokens.ctypes.data_as(POINTER(c_int32))
        self._batch.pos = self._positions.ctypes.data_as(POINTER(c_int32))
        self._batch.n_seq_id = self._counts.ctypes.data_as(POINTER(c_int32))
        self._batch.seq_id = self._sequence_pointers.ctypes.data_as(POINTER(POINTER(c_int32)))
        self._batch.logits = self._outputs.ctypes.data_as(POINTER(c_int8))

    def decode(
        self,
        activations: Activations,
        positions: npt.NDArray[np.int32],
        slots: npt.NDArray[np.int32],
        outputs: npt.NDArray[np.int8] | None,
        branches: Sequence[Sequence[int]] | None = None,
    ) -> str:
        """Run the rows; returns an empty string, or why llama.cpp could not.

        activations: (rows, width) float32, C order. positions, slots: (rows,). outputs: (rows,) of 0 and 1, or None
        when every row is an output. branches: for rows that several sequences of a unified context share, those of
        each row; `slots` is not looked at then.
        """
        rows = len(positions)
        self._positions[:rows] = positions
        if branches is None:
            self._sequence_ids[:rows] = slots
        else:
            counts = [len(sequences) for sequences in branches]
            shared = np.array([sequence for sequences in branches for sequence in sequences], np.int32)
            self._counts[:rows] = counts
            self._sequence_pointers[:rows] = _addresses(shared, np.cumsum([0, *counts[:-1]]))
        self._outputs[:rows] = 1 if outputs is None else outputs
        self._batch.n_tokens = rows
        if not self._by_token:
            self._batch.embd = ctypes.cast(activations.ctypes.data, POINTER(c_float))
        status: int = self._library.llama_decode(self._context, self._batch)
        if branches is not None:
            self._counts[:rows] = 1
            self._sequence_pointers[:rows] = self._own_pointers[:rows]
        if status == 0:
            return ""
        meaning = {1: "no room in the KV cache", 2: "aborted", -1: "the batch was refused", -2: "out of memory"}
        detail = self._library.explain()
        return f"llama_decode: {meaning.get(status, f'error {status}')}" + (f" ({detail})" if detail else "")

    def logits(self, row: int) -> npt.NDArray[np.float32]:
        """Logits of an output row of the last call, shape (vocabulary,): a view, valid until the next call.

        row: index of the row in the batch, whatever order it was computed in.
        """
        pointer = self._library.llama_get_logits_ith(self._context, row)
        if not pointer:
            raise LongspanError(f"llama.cpp has no logits for row {row}: {self._library.explain()}")
        # llama.cpp writes into the same buffer each time, and an array of a pointer is dear to make.
        address = ctypes.addressof(pointer.contents)
        view = self._logits.get(address)
        if view is None:
            if len(self._logits) >= _MOST_VIEWS:
                self._logits.clear()
            view = self._logits[address] = np.ctypeslib.as_array(pointer, shape=(self.vocabulary,))
        return view

    def keep_hidden(self, wanted: bool) -> None:
        """Whether the next calls keep the hidden state of rows; while they do, every row is an output.

        Then a call may have at most `max_outputs` rows, and each costs a pass through the output matrix.
        """
        if wanted != self._keeps_hidden:
            self._library.llama_set_embeddings(self._context, wanted)
            self._keeps_hidden = wanted

    def hidden(self, row: int) -> npt.NDArray[np.float32]:
        """Hidden state after the output norm of a row of the last call, shape (width,): a copy."""
        pointer = self._library.llama_get_embeddings_ith(self._context, row)
        if not pointer:
            raise LongspanError(f"llama.cpp has no hidden state of row {row}: {self._library.explain()}")
        return np.ctypeslib.as_array(pointer, shape=(self.width,)).copy()

    def trim(self, slot: int, keep: int) -> None:
        """Remove the cells of `slot` from position `keep` on."""
        if not self._library.llama_memory_seq_rm(self._memory, slot, keep, -1):
            raise LongspanError(f"llama.cpp cannot trim slot {slot} to {keep} positions")

    def copy(self, source: int, target: int, length: int) -> None:
        """Make the empty slot `target` hold the first `length` positions of `source`."""
        # Between streams llama.cpp copies whole sequences only; a range would end the process.
        self._library.llama_memory_seq_cp(self._memory, source, target, -1, -1)
        self.trim(target, length)

    def share(self, source: int, target: int) -> None:
        """Let the sequence `target` of a unified context hold all cells of `source` too."""
        self._library.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def remove(self, slot: int, start: int, end: int) -> None:
        """Remove the positions [start, end) of `slot` and move the later ones down to close the gap."""
        self._library.llama_memory_seq_rm(self._memory, slot, start, end)
        self._library.llama_memory_seq_add(self._memory, slot, end, -1, start - end)

    def clear(self) -> None:
        """Empty every slot, and fill all cells with zeros."""
        self._library.llama_memory_clear(self._memory, True)

    def close(self) -> None:
        """Release context and model."""
        context, self._context = self._context, None
        model, self._model = self._model, None
        if context:
            self._library.llama_free(context)
        if model:
            self._library.llama_model_free(model)


def _addresses(values: npt.NDArray[np.int32], places: npt.NDArray[np.intp]) -> npt.NDArray[np.uintp]:
    """Where the values at these places lie in memory."""
    found: npt.NDArray[np.uintp] = values.ctypes.data + 4 * places.astype(np.uintp)
    return found
