"""The floor that everything is compared with: llama.cpp's own decode in a loop, and nothing else."""

from __future__ import annotations

import ctypes
import dataclasses
import time
from collections.abc import Sequence
from ctypes import POINTER, c_int8, c_int32
from pathlib import Path

import numpy as np

from longspan.errors import LongspanError
from longspan.llamacpp.library import Library
from longspan.llamacpp.structs import Batch


@dataclasses.dataclass(frozen=True)
class BareRun:
    """tokens: greedily generated. seconds: from the first of them to the last."""

    tokens: tuple[int, ...]
    seconds: float

    @property
    def per_second(self) -> float:
        """Tokens after the first, a second."""
        return (len(self.tokens) - 1) / self.seconds


class BareLoop:
    """One sequence, token input, greedy, on the model file as it is."""

    def __init__(self, library: Library, path: Path, *, threads: int, cells: int) -> None:
        self._library = library
        self._model = library.llama_model_load_from_file(str(path).encode(), library.llama_model_default_params())
        parameters = library.llama_context_default_params()
        parameters.n_ctx = cells
        parameters.n_threads = parameters.n_threads_batch = threads
        self._context = library.llama_init_from_model(self._model, parameters)
        if not self._context:
            raise LongspanError(f"llama.cpp cannot open {path}: {library.explain()}")
        self._vocabulary: int = library.llama_vocab_n_tokens(library.llama_model_get_vocab(self._model))
        self._tokens = (c_int32 * cells)()
        self._positions = (c_int32 * cells)()
        self._outputs = (c_int8 * cells)()
        self._sequence = (c_int32 * 1)(0)
        self._sequences = (POINTER(c_int32) * cells)(*[ctypes.cast(self._sequence, POINTER(c_int32))] * cells)
        self._counts = (c_int32 * cells)(*[1] * cells)

    def generate(self, prompt: Sequence[int], count: int) -> BareRun:
        """Continue the prompt by `count` tokens."""
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), True)
        tokens = [self._step(prompt, 0)]
        started = time.perf_counter()
        for position in range(len(prompt), len(prompt) + count - 1):
            tokens.append(self._step(tokens[-1:], position))
        return BareRun(tuple(tokens), time.perf_counter() - started)

    def close(self) -> None:
        """Release the memory."""
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)

    def _step(self, tokens: Sequence[int], start: int) -> int:
        count = len(tokens)
        self._tokens[:count] = list(tokens)
        self._positions[:count] = list(range(start, start + count))
        for row in range(count):
            self._outputs[row] = row == count - 1
        batch = Batch(count, self._tokens, None, self._positions, self._counts, self._sequences, self._outputs)
        if self._library.llama_decode(self._context, batch):
            raise LongspanError(f"llama_decode failed: {self._library.explain()}")
        pointer = self._library.llama_get_logits_ith(self._context, count - 1)
        return int(np.ctypeslib.as_array(pointer, shape=(self._vocabulary,)).argmax())
