"""Writing a GGUF file: metadata, then tensors, most of them copied byte for byte from where they lie."""

from __future__ import annotations

import dataclasses
import functools
import io
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence

from longspan.errors import ModelError
from longspan.model.gguf_file import DEFAULT_ALIGNMENT, MAGIC, Tensor
from longspan.model.metadata import MetadataValue
from longspan.model.tensor_types import F32, TensorType

_VERSION = 3
_CHUNK = 4 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor to write. `chunks` gives its `size` bytes, in pieces, when it is its turn."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    size: int
    chunks: Callable[[], Iterator[bytes]]


def copied(tensor: Tensor, name: str | None = None) -> NewTensor:
    """A raw copy of `tensor`, under another name if one is given."""
    read = functools.partial(read_tensor, tensor)
    return NewTensor(name or tensor.name, tensor.type, tensor.shape, tensor.size, read)


def ones(name: str, shape: tuple[int, ...]) -> NewTensor:
    """A small float32 tensor that holds 1 everywhere."""
    data = struct.pack("<f", 1.0) * math.prod(shape)
    return NewTensor(name, F32, shape, len(data), lambda: iter((data,)))


def zeros(name: str, kind: TensorType, shape: tuple[int, ...]) -> NewTensor:
    """A tensor of zero bytes, which is zero in every type."""
    size = kind.row_bytes(shape[0]) * math.prod(shape[1:])
    return NewTensor(
        name, kind, shape, size, lambda: (bytes(min(_CHUNK, size - at)) for at in range(0, size, _CHUNK))
    )


def read_tensor(tensor: Tensor, chunk: int = _CHUNK) -> Iterator[bytes]:
    """The bytes of a tensor in pieces of `chunk`. Raises ModelError when its file was cut meanwhile."""
    with tensor.path.open("rb") as source:
        source.seek(tensor.offset)
        left = tensor.size
        while left:
            data = source.read(min(left, chunk))
            if not data:
                raise ModelError(
                    f"{tensor.path} was cut while it was read: tensor {tensor.name!r} is not all there."
                )
            left -= len(data)
            yield data


def _padded(size: int) -> int:
    return -(-size // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT


def _header(metadata: Mapping[str, MetadataValue], tensors: Sequence[NewTensor]) -> bytes:
    out = io.BytesIO()
    kept = {key: value for key, value in metadata.items() if key != "general.alignment"}
    out.write(MAGIC + struct.pack("<IQQ", _VERSION, len(tensors), len(kept)))
    for key, value in kept.items():
        name = key.encode()
        out.write(struct.pack("<Q", len(name)) + name + value.encode())
    offset = 0
    for tensor in tensors:
        name = tensor.name.encode()
        out.write(struct.pack("<Q", len(name)) + name)
        dimensions = len(tensor.shape)
        out.write(struct.pack(f"<I{dimensions}QIQ", dimensions, *tensor.shape, tensor.type.number, offset))
        offset += _padded(tensor.size)
    out.write(b"\0" * (_padded(out.tell()) - out.tell()))
    return out.getvalue()


def gguf_size(metadata: Mapping[str, MetadataValue], tensors: Sequence[NewTensor]) -> int:
    """Bytes that the file will take."""
    return len(_header(metadata, tensors)) + sum(_padded(tensor.size) for tensor in tensors)


def gguf_chunks(metadata: Mapping[str, MetadataValue], tensors: Sequence[NewTensor]) -> Iterator[bytes]:
    """The bytes of the file in pieces; the header is one of them.

    Raises ModelError when a source file is cut while it is read, OSError when one cannot be opened.
    """
    yield _header(metadata, tensors)
    for tensor in tensors:
        yield from tensor.chunks()
        if _padded(tensor.size) != tensor.size:
            yield b"\0" * (_padded(tensor.size) - tensor.size)
