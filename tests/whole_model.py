"""The unsplit model, run by a bare `llama_decode` loop over token input: the truth that splits must equal."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from longspan.llamacpp.library import load_library
from longspan.llamacpp.structs import Batch


class WholeModel:
    """One sequence of a whole model; a context manager. One thread, exact KV stream, full sliding-window cache.

    precise: attention in float32 throughout, to compare with another implementation. By default llama.cpp keeps
    keys and values as float16, and its flash attention rounds to float16 whatever the cache.
    """

    def __init__(self, path: Path, *, context: int = 512, precise: bool = False) -> None:
        self._library = load_library()
        parameters = self._library.llama_model_default_params()
        parameters.n_gpu_layers = 0
        self._model = self._library.llama_model_load_from_file(str(path).encode(), parameters)
        if not self._model:
            raise AssertionError(f"llama.cpp does not load {path}: {self._library.explain()}")
        options = self._library.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = context
        options.n_threads = options.n_threads_batch = 1
        options.swa_full = True
        if precise:
            options.type_k = options.type_v = 0
            options.flash_attn_type = 0
        self._context = self._library.llama_init_from_model(self._model, options)
        if not self._context:
            raise AssertionError(f"no context for {path}: {self._library.explain()}")
        vocabulary = self._library.llama_model_get_vocab(self._model)
        self.vocabulary: int = self._library.llama_vocab_n_tokens(vocabulary)
        self.length = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)

    def trim(self, keep: int) -> None:
        """Forget the positions from `keep` on."""
        memory = self._library.llama_get_memory(self._context)
        assert self._library.llama_memory_seq_rm(memory, 0, keep, -1)
        self.length = keep

    def run(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits (len(tokens), vocabulary) after each of the tokens, which follow what was run before."""
        count = len(tokens)
        sequence = ctypes.pointer(ctypes.c_int32(0))
        batch = Batch(
            n_tokens=count,
            token=(ctypes.c_int32 * count)(*tokens),
            embd=None,
            pos=(ctypes.c_int32 * count)(*range(self.length, self.length + count)),
            n_seq_id=(ctypes.c_int32 * count)(*[1] * count),
            seq_id=(ctypes.POINTER(ctypes.c_int32) * count)(*[sequence] * count),
            logits=(ctypes.c_int8 * count)(*[1] * count),
        )
        status = self._library.llama_decode(self._context, batch)
        assert status == 0, f"llama_decode: {status}: {self._library.explain()}"
        self.length += count
        rows = [
            np.ctypeslib.as_array(self._library.llama_get_logits_ith(self._context, row), (self.vocabulary,))
            for row in range(count)
        ]
        return np.stack(rows)

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The greedy answer of `count` tokens, one row at a time; starts from an empty context."""
        self.trim(0)
        logits = self.run(prompt)[-1]
        answer = [int(logits.argmax())]
        while len(answer) < count:
            answer.append(int(self.run(answer[-1:])[-1].argmax()))
        return answer
