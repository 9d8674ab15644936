"""Looking token rows up: the first thing that happens to a token, on the coordinator."""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

from longspan.errors import ModelError
from longspan.model.gguf_file import Tensor
from longspan.model.quantisation import PLAIN, row_dequantiser, widen

CACHED_BYTES = 16 << 20
"""Rows that are kept ready: the tokens of an answer come again and again, and a look-up costs ten times as much."""


class TokenEmbedding:
    """The token embedding, memory mapped: only the pages of rows that are asked for are read.

    Rows of quantised types go through ggml's own `dequantize_row_*`, which is what llama.cpp's row lookup calls on
    the CPU, so they are the same to the bit. One row of 576 elements takes about 10 µs.
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
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelError(f"{tensor.path} cannot be read: {error.strerror or error}.") from error
        if len(mapped) < tensor.offset + tensor.size:
            raise ModelError(f"{tensor.path} was cut: {tensor.name} is not all there. Get the file again.")
        data = np.frombuffer(mapped, dtype=np.uint8, count=tensor.size, offset=tensor.offset)
        self._rows = data.reshape(self.vocabulary, row_bytes)
        self._dequantise = None if tensor.type in PLAIN else row_dequantiser(tensor.type, library)
        self._cached: dict[int, npt.NDArray[np.float32]] = {}
        self._most_cached = max(1, CACHED_BYTES // (4 * self.width))

    def rows(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """The rows of `tokens`, shape (len(tokens), width), float32, C order, scale applied; not to be written to.

        Raises ModelError when a token is not in the vocabulary.
        """
        if len(tokens) != 1:
            return self._looked_up(tokens)
        token = int(tokens[0])
        found = self._cached.get(token)
        if found is None:
            found = self._looked_up(tokens)
            if len(self._cached) >= self._most_cached:
                del self._cached[next(iter(self._cached))]
            self._cached[token] = found
        return found

    def _looked_up(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        if tokens.size and (tokens.min() < 0 or tokens.max() >= self.vocabulary):
            raise ModelError(f"a token is outside the vocabulary of {self.vocabulary}: {tokens.tolist()[:16]}.")
        raw = self._rows[tokens]
        if self._dequantise is None:
            rows = widen(raw, self._type)
        else:
            rows = np.empty((len(tokens), self.width), dtype=np.float32)
            self._dequantise(raw.ctypes.data, rows.ctypes.data, rows.size)
        if self._scale != 1.0:
            rows *= self._scale
        return rows
