"""Composed stages run one after the other by bare `llama_decode` calls, without Longspan's runtime."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from longspan.llamacpp import structs
from longspan.llamacpp.library import load_library
from longspan.model.architecture import Architecture, find_architecture
from longspan.model.source import ModelSource

Rows = npt.NDArray[np.float32]


class Stage:
    """One stage file with one sequence. It reads the residual of its last layer, and the logits.

    Activations go in as embeddings, or over the tensor that the architecture names as its input tensor.
    """

    def __init__(
        self, path: Path, architecture: Architecture, layers: int, width: int, *, context: int = 512
    ) -> None:
        self._library = load_library()
        self._set = self._library.ggml_backend_tensor_set
        self._set.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]  # type: ignore[attr-defined]
        self._width = width
        self._wanted = f"{architecture.residual}-{layers - 1}".encode()
        self._input = (architecture.input_tensor or "").encode()
        self._rows = np.zeros((0, width), np.float32)
        self._residual: Rows | None = None
        parameters = self._library.llama_model_default_params()
        parameters.n_gpu_layers = 0
        self._model = self._library.llama_model_load_from_file(str(path).encode(), parameters)
        assert self._model, f"llama.cpp does not load {path}: {self._library.explain()}"
        options = self._library.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = context
        options.n_threads = options.n_threads_batch = 1
        options.swa_full = True
        self._callback = structs.EVALUATION_CALLBACK(self._evaluated)
        options.cb_eval = ctypes.cast(self._callback, ctypes.c_void_p)
        self._context = self._library.llama_init_from_model(self._model, options)
        assert self._context, f"no context for {path}: {self._library.explain()}"
        self.vocabulary: int = self._library.llama_vocab_n_tokens(self._library.llama_model_get_vocab(self._model))
        self._length = 0

    def close(self) -> None:
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)

    def _evaluated(self, tensor: int, asked: bool, _data: object) -> bool:
        name = self._library.ggml_get_name(tensor)
        if name not in (self._wanted, self._input):
            return not asked
        if asked:
            return True
        if name == self._input:
            self._set(tensor, self._rows.ctypes.data, 0, self._rows.nbytes)
        else:
            size = self._library.ggml_nbytes(tensor)
            self._residual = np.empty((size // 4 // self._width, self._width), np.float32)
            self._library.ggml_backend_tensor_get(tensor, self._residual.ctypes.data, 0, size)
        return True

    def run(self, activations: Rows) -> tuple[Rows | None, Rows]:
        """The residual after the last layer (None when no tensor of that name was seen), and the logits."""
        count = len(activations)
        self._rows = np.ascontiguousarray(activations, np.float32)
        sequence = ctypes.pointer(ctypes.c_int32(0))
        self._residual = None
        batch = structs.Batch(
            n_tokens=count,
            token=(ctypes.c_int32 * count)() if self._input else None,
            embd=None if self._input else self._rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            pos=(ctypes.c_int32 * count)(*range(self._length, self._length + count)),
            n_seq_id=(ctypes.c_int32 * count)(*[1] * count),
            seq_id=(ctypes.POINTER(ctypes.c_int32) * count)(*[sequence] * count),
            logits=(ctypes.c_int8 * count)(*[1] * count),
        )
        status = self._library.llama_decode(self._context, batch)
        assert status == 0, f"llama_decode: {status}: {self._library.explain()}"
        self._length += count
        pointers = [self._library.llama_get_logits_ith(self._context, row) for row in range(count)]
        return self._residual, np.stack([np.ctypeslib.as_array(row, (self.vocabulary,)) for row in pointers])


class StagedModel:
    """All stages of a source in one process."""

    def __init__(self, source: ModelSource, splits: Sequence[tuple[int, int]]) -> None:
        width = source.description.width
        architecture = find_architecture(source.description.architecture)
        self._embedding = source.token_embedding()
        self.stages = [
            Stage(source.stage_file(start, end), architecture, end - start, width) for start, end in splits
        ]

    def close(self) -> None:
        for stage in self.stages:
            stage.close()

    def run(self, tokens: Sequence[int]) -> Rows:
        """Logits (len(tokens), vocabulary) after each of the tokens, which follow what was run before."""
        rows = self._embedding.rows(np.asarray(tokens, np.int32))
        for stage in self.stages[:-1]:
            residual, _ = stage.run(rows)
            assert residual is not None, "no residual tensor of that name was seen"
            assert len(residual) == len(tokens)
            rows = residual
        return self.stages[-1].run(rows)[1]


@contextlib.contextmanager
def staged(
    source: ModelSource,
    splits: Sequence[tuple[int, int]],
) -> Iterator[StagedModel]:
    model = StagedModel(source, splits)
    try:
        yield model
    finally:
        model.close()
