"""Looking token rows up: the first thing that happens to a token, on the coordinator."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from longspan.errors import ModelError
from longspan.llamacpp.library import load_library
from longspan.model.gguf_file import Tensor
from longspan.model.tensor_types import BF16, F16, F32, TensorType

_PLAIN = (F32, F16, BF16)


class TokenEmbedding:
    """The token embedding, memory mapped: only the pages of rows that are asked for are read.

    Rows of quantised types go through ggml's own `dequantize_row_*`, which is what llama.cpp's row lookup calls on
    the CPU, so they are the same to the bit.
    """

    def __init__(self, tensor: Tensor, scale: float, library: str | None = None) -> None:
        """tensor: the embedding, (width, vocabulary). scale: factor on every row. library: as for `load_library`.

        Raises ModelError when the file cannot be mapped or the tensor's type cannot be looked up.
        """
        self.width, self.vocabulary = tensor.shape
        self._scale = np.float32(scale)
        self._type = tensor.type
        row_bytes = tensor.type.row_bytes(self.width)
        try:
            with tensor.path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelError(f"{tensor.path} cannot be read: {error.strerror or error}.") from error
        if len(self._map) < tensor.offset + tensor.size:
            raise ModelError(f"{tensor.path} was cut: {tensor.name} is not all there. Get the file again.")
        data = np.frombuffer(self._map, dtype=np.uint8, count=tensor.size, offset=tensor.offset)
        self._rows = data.reshape(self.vocabulary, row_bytes)
        self._dequantise = None if tensor.type in _PLAIN else _dequantiser(tensor, library)

    def rows(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """The rows of `tokens`, shape (len(tokens), width), float32, C order, scale applied.

        Raises ModelError when a token is not in the vocabulary.
        """
        if tokens.size and (int(tokens.min()) < 0 or int(tokens.max()) >= self.vocabulary):
            raise ModelError(f"a token is outside the vocabulary of {self.vocabulary}: {tokens.tolist()[:16]}.")
        raw = self._rows[tokens]
        if self._dequantise is None:
            rows = _widen(raw, self._type)
        else:
            rows = np.empty((len(tokens), self.width), dtype=np.float32)
            self._dequantise(raw.ctypes.data, rows.ctypes.data, rows.size)
        if self._scale != 1.0:
            rows *= self._scale
        return rows


def _widen(raw: npt.NDArray[np.uint8], kind: TensorType) -> npt.NDArray[np.float32]:
    if kind == BF16:
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if kind == F16:
        return raw.view(np.float16).astype(np.float32)
    return raw.view(np.float32)


def _dequantiser(tensor: Tensor, library: str | None) -> Callable[[int, int, int], None]:
    name = tensor.type.name
    # ggml writes its names in lower case but for the K of the k-quants.
    suffix = name.lower().replace("_k", "_K")
    try:
        function = getattr(load_library(library), f"dequantize_row_{suffix}")
    except AttributeError as error:
        raise ModelError(f"{tensor.path}: token rows of the type {name} cannot be looked up.") from error
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    dequantise: Callable[[int, int, int], None] = signature(ctypes.cast(function, ctypes.c_void_p).value or 0)
    return dequantise
