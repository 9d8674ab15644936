"""Packing rows into ggml's quantised types and back, by ggml's own functions."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from longspan.errors import ModelError
from longspan.llamacpp.library import load_library
from longspan.model.gguf_file import Tensor
from longspan.model.gguf_writer import NewTensor, read_tensor
from longspan.model.tensor_types import BF16, F16, F32, TENSOR_TYPES, TensorType

_BY_NAME = {kind.name: kind for kind in TENSOR_TYPES.values()}
PLAIN = (F32, F16, BF16)
"""The types that hold one element after the other, unpacked."""

_WITHOUT_SUPER_BLOCKS = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""What a row that is no multiple of 256 becomes instead; as `llama-quantize` does it."""

TARGETS: tuple[str, ...] = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
"""The types that a package can be requantised to; none of them needs an importance matrix."""

_CHUNK_ELEMENTS = 1 << 20


def row_dequantiser(kind: TensorType, library: str | None = None) -> Callable[[int, int, int], None]:
    """ggml's `dequantize_row_*` for a quantised type: (address of the blocks, address of the floats, elements).

    Raises ModelError when ggml has no such function.
    """
    # ggml writes its names in lower case but for the K of the k-quants.
    symbol = f"dequantize_row_{kind.name.lower().replace('_k', '_K')}"
    try:
        function = getattr(load_library(library), symbol)
    except AttributeError as error:
        raise ModelError(f"rows of the type {kind.name} cannot be unpacked: llama.cpp has no {symbol}.") from error
    function.restype = None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    dequantise: Callable[[int, int, int], None] = function
    return dequantise


def _chunk_quantiser() -> Callable[[int, int, int, int, int, int, None], int]:
    """ggml's `ggml_quantize_chunk`: (type, floats, blocks, first, rows, columns, importance) gives bytes."""
    function: Any = load_library().ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    integers = [ctypes.c_int64] * 3
    function.argtypes = [ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *integers, ctypes.c_void_p]
    quantise: Callable[[int, int, int, int, int, int, None], int] = function
    return quantise


def widen(raw: npt.NDArray[np.uint8], kind: TensorType) -> npt.NDArray[np.float32]:
    """Bytes of one of the `PLAIN` types as float32; exact."""
    if kind == BF16:
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if kind == F16:
        return raw.view(np.float16).astype(np.float32)
    return raw.view(np.float32)


def row_type(target: str, columns: int) -> TensorType:
    """The type that rows of `columns` elements get when `target` is asked for.

    Raises ModelError when the target is not one of `TARGETS`.
    """
    if target not in TARGETS:
        raise ModelError(f"a model cannot be requantised to {target!r}. Possible: {', '.join(TARGETS)}.")
    kind = _BY_NAME[target]
    if columns % kind.block and target in _WITHOUT_SUPER_BLOCKS:
        kind = _BY_NAME[_WITHOUT_SUPER_BLOCKS[target]]
    return F16 if columns % kind.block else kind


def requantised(tensor: Tensor, kind: TensorType) -> NewTensor:
    """`tensor` packed as `kind` when it is written; the rows go through float32 in pieces of 4 MB."""
    size = kind.row_bytes(tensor.shape[0]) * (tensor.size // tensor.type.row_bytes(tensor.shape[0]))
    return NewTensor(tensor.name, kind, tensor.shape, size, functools.partial(_requantise, tensor, kind))


def _requantise(tensor: Tensor, kind: TensorType) -> Iterator[bytes]:
    columns = tensor.shape[0]
    rows = max(1, _CHUNK_ELEMENTS // columns)
    convert = functools.partial(_convert, tensor.type, kind, columns)
    pieces = read_tensor(tensor, rows * tensor.type.row_bytes(columns))
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        # ctypes releases the interpreter lock, so the pieces are packed side by side; only a few at once are held.
        waiting = []
        for piece in pieces:
            waiting.append(pool.submit(convert, piece))
            if len(waiting) > 2 * (os.cpu_count() or 1):
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()


def _convert(source: TensorType, target: TensorType, columns: int, piece: bytes) -> bytes:
    raw = np.frombuffer(piece, dtype=np.uint8)
    rows = len(piece) // source.row_bytes(columns)
    if source in PLAIN:
        values = widen(raw, source)
    else:
        values = np.empty(rows * columns, dtype=np.float32)
        row_dequantiser(source)(raw.ctypes.data, values.ctypes.data, values.size)
    return pack(values.reshape(rows, columns), target)


def pack(values: npt.NDArray[np.float32], kind: TensorType) -> bytes:
    """Rows of floats, (rows, columns) in C order, as the bytes of a tensor of the given type."""
    if kind == F32:
        return values.tobytes()
    if kind == F16:
        return values.astype(np.float16).tobytes()
    rows, columns = values.shape
    packed = np.empty(rows * kind.row_bytes(columns), dtype=np.uint8)
    quantise = _chunk_quantiser()
    written = quantise(kind.number, values.ctypes.data, packed.ctypes.data, 0, rows, columns, None)
    if written != packed.size:
        raise ModelError(f"llama.cpp packed {written} bytes of {kind.name} where {packed.size} were expected.")
    return packed.tobytes()
