"""Writing a GGUF file: metadata, then tensors copied byte for byte from where they lie."""

from __future__ import annotations

import dataclasses
import io
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from longspan.errors import ModelError
from longspan.model.gguf_file import DEFAULT_ALIGNMENT, MAGIC, Tensor
from longspan.model.metadata import MetadataValue
from longspan.model.tensor_types import TensorType

_VERSION = 3
_CHUNK = 4 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor to write: its data is either `source`, copied raw, or `data`."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    source: Tensor | None = None
    data: bytes = b""

    @property
    def size(self) -> int:
        return len(self.data) if self.source is None else self.source.size


def copied(tensor: Tensor, name: str | None = None) -> NewTensor:
    """A raw copy of `tensor`, under another name if one is given."""
    return NewTensor(name or tensor.name, tensor.type, tensor.shape, source=tensor)


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
        out.write(
            struct.pack(f"<I{len(tensor.shape)}QIQ", len(tensor.shape), *tensor.shape, tensor.type.number, offset)
        )
        offset += _padded(tensor.size)
    out.write(b"\0" * (_padded(out.tell()) - out.tell()))
    return out.getvalue()


def _copy(tensor: Tensor, source: BinaryIO) -> Iterator[bytes]:
    source.seek(tensor.offset)
    left = tensor.size
    while left:
        data = source.read(min(left, _CHUNK))
        if not data:
            raise ModelError(f"{tensor.path} was cut while it was read: tensor {tensor.name!r} is not all there.")
        left -= len(data)
        yield data


def gguf_size(metadata: Mapping[str, MetadataValue], tensors: Sequence[NewTensor]) -> int:
    """Bytes that the file will take."""
    return len(_header(metadata, tensors)) + sum(_padded(tensor.size) for tensor in tensors)


def gguf_chunks(metadata: Mapping[str, MetadataValue], tensors: Sequence[NewTensor]) -> Iterator[bytes]:
    """The bytes of the file in pieces of at most 4 MB (the header is one piece).

    Raises ModelError when a source file is cut while it is read, OSError when one cannot be opened.
    """
    yield _header(metadata, tensors)
    open_path: Path | None = None
    source: BinaryIO | None = None
    try:
        for tensor in tensors:
            if tensor.source is None:
                yield tensor.data
            else:
                if source is None or tensor.source.path != open_path:
                    if source is not None:
                        source.close()
                    open_path = tensor.source.path
                    source = open_path.open("rb", buffering=0)
                yield from _copy(tensor.source, source)
            yield b"\0" * (_padded(tensor.size) - tensor.size)
    finally:
        if source is not None:
            source.close()
