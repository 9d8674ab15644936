"""llama.cpp's own MTP context over a whole model file, as its server drives it."""

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

Rows = npt.NDArray[np.float32]

_MTP = 1
"""enum llama_context_type"""
_KEEP = "_Z26llama_set_embeddings_nextnP13llama_contextbb"
_GET = "_Z30llama_get_embeddings_nextn_ithP13llama_contexti"
"""C++ names of functions that are not in the C header (llama-ext.h of build 11549)."""


class MtpContext:
    """One sequence; a context manager. Rows are the hidden state at a position and the token after it."""

    def __init__(self, path: Path) -> None:
        self._library = library = load_library()
        parameters = library.llama_model_default_params()
        parameters.n_gpu_layers, parameters.load_mtp = 0, True
        self._model = library.llama_model_load_from_file(str(path).encode(), parameters)
        assert self._model, library.explain()
        options = library.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = 256
        options.n_outputs_max = options.n_outputs_max_per_seq = 256
        options.n_threads = options.n_threads_batch = 1
        options.ctx_type = _MTP
        self._context = library.llama_init_from_model(self._model, options)
        assert self._context, library.explain()
        getattr(library, _KEEP)(ctypes.c_void_p(self._context), ctypes.c_bool(True), ctypes.c_bool(True))
        self._width = library.llama_model_n_embd(self._model)
        self._vocabulary = library.llama_vocab_n_tokens(library.llama_model_get_vocab(self._model))
        self._length = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)

    def step(self, tokens: Sequence[int], hidden: Rows) -> tuple[Rows, Rows]:
        """Logits (vocabulary,) and the layer's own hidden state (width,) behind the last of the tokens."""
        count = len(tokens)
        rows = np.ascontiguousarray(hidden, np.float32)
        sequence = ctypes.pointer(ctypes.c_int32(0))
        batch = Batch(
            n_tokens=count,
            token=(ctypes.c_int32 * count)(*tokens),
            embd=rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            pos=(ctypes.c_int32 * count)(*range(self._length, self._length + count)),
            n_seq_id=(ctypes.c_int32 * count)(*[1] * count),
            seq_id=(ctypes.POINTER(ctypes.c_int32) * count)(*[sequence] * count),
            logits=(ctypes.c_int8 * count)(*[1] * count),
        )
        status = self._library.llama_decode(self._context, batch)
        assert status == 0, f"llama_decode: {status}: {self._library.explain()}"
        self._length += count
        logits = self._library.llama_get_logits_ith(self._context, count - 1)
        get = getattr(self._library, _GET)
        get.restype = ctypes.POINTER(ctypes.c_float)
        state = get(ctypes.c_void_p(self._context), ctypes.c_int32(count - 1))
        return (
            np.ctypeslib.as_array(logits, (self._vocabulary,)).copy(),
            np.ctypeslib.as_array(state, (self._width,)).copy(),
        )

    def chain(self, tokens: Sequence[int], hidden: Rows, length: int) -> list[Rows]:
        """Logits of `length` steps, each behind the likeliest token of the one before."""
        logits, state = self.step(tokens, hidden)
        steps = [logits]
        while len(steps) < length:
            logits, state = self.step([int(logits.argmax())], state[None])
            steps.append(logits)
        return steps
