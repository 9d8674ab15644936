"""Reading the header of a GGUF file: metadata and where each tensor lies.

Every count is checked against the bytes that are there before anything is allocated, so a damaged or hostile file
gives a ModelError. The reader of the `gguf` package trusts the counts, and builds one numpy object a token (6 s and
160 MB for a vocabulary of 49,152; 23 s and 690 MB for 262,144, measured); this one takes 0.1 s and the raw bytes.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3.
"""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

from longspan.errors import ModelError
from longspan.model.metadata import SCALAR_FORMATS, Decoded, MetadataValue, ValueType
from longspan.model.tensor_types import TENSOR_TYPES, TensorType

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
_VERSIONS = (2, 3)
_MAXIMUM_HEADER = 1 << 30
"""Bytes of metadata and tensor list that are read at most; the largest known vocabularies need some 20 MB."""
_MAXIMUM_KEY = 65_535
_MAXIMUM_DIMENSIONS = 4
_SMALLEST_ENTRY = 8 + 1 + 4 + 1
"""Bytes that a metadata entry or a tensor entry takes at least: a count above size / this is absurd."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file. shape: elements by dimension, fastest first (a matrix is (columns, rows)).

    offset and size are in bytes from the start of `path`.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    path: Path
    offset: int
    size: int


@dataclasses.dataclass(frozen=True)
class GgufFile:
    """Metadata and tensors of a model. paths: one file, or the shards of a split model in order."""

    paths: tuple[Path, ...]
    metadata: dict[str, MetadataValue]
    tensors: dict[str, Tensor]

    @property
    def path(self) -> Path:
        return self.paths[0]

    @property
    def architecture(self) -> str:
        """`general.architecture`. Raises ModelError when the file has none."""
        return self.string("general.architecture")

    def value(self, key: str) -> Decoded | None:
        found = self.metadata.get(key)
        return None if found is None else found.decode()

    def string(self, key: str) -> str:
        """A required string. Raises ModelError naming the key."""
        value = self.value(key)
        if not isinstance(value, str):
            raise ModelError(f"{self.path} has no text under {key!r}; it is not a complete language model.")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer; of a per-layer array the first. Raises ModelError when it is missing without a default."""
        value = self.value(key)
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int):
            if default is not None and value is None:
                return default
            raise ModelError(f"{self.path} has no whole number under {key!r}; it is not a complete language model.")
        return value

    def number(self, key: str) -> float | None:
        value = self.value(key)
        return float(value) if isinstance(value, int | float) else None


class _Cursor:
    """Reads little-endian values from the mapped header; every read is checked against the end."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.end = min(len(data), _MAXIMUM_HEADER)
        self.offset = 0
        self.path = path

    def need(self, count: int, what: str) -> None:
        if count > self.end - self.offset:
            raise ModelError(
                f"{self.path} is truncated or damaged: {what} at byte {self.offset} needs {count} bytes, "
                f"{self.end - self.offset} are left. Get the file again."
            )

    def bytes(self, count: int, what: str) -> bytes:
        self.need(count, what)
        start, self.offset = self.offset, self.offset + count
        return self.data[start : self.offset]

    def unsigned(self, size: int, what: str) -> int:
        return int.from_bytes(self.bytes(size, what), "little")

    def string(self, what: str, limit: int = _MAXIMUM_KEY) -> str:
        length = self.unsigned(8, f"the length of {what}")
        if length > limit:
            raise ModelError(f"{self.path} is damaged: {what} claims {length} bytes. Get the file again.")
        try:
            return self.bytes(length, what).decode()
        except UnicodeDecodeError as error:
            raise ModelError(f"{self.path} is damaged: {what} is not UTF-8. Get the file again.") from error

    def skip_strings(self, count: int, what: str) -> None:
        """Move past `count` strings. Kept tight: a vocabulary has hundreds of thousands."""
        self.need(8 * count, what)
        unpack = struct.Struct("<Q").unpack_from
        offset, end, data = self.offset, self.end, self.data
        for _ in range(count):
            if offset + 8 > end:
                break
            offset += 8 + unpack(data, offset)[0]
        else:
            if offset <= end:
                self.offset = offset
                return
        raise ModelError(f"{self.path} is truncated or damaged: {what} runs past the end. Get the file again.")


def _read_type(cursor: _Cursor, key: str) -> ValueType:
    number = cursor.unsigned(4, f"the type of {key!r}")
    try:
        return ValueType(number)
    except ValueError as error:
        raise ModelError(f"{cursor.path} is damaged: {key!r} has the unknown value type {number}.") from error


def _read_value(cursor: _Cursor, key: str) -> MetadataValue:
    kind = _read_type(cursor, key)
    count = None
    if kind is ValueType.ARRAY:
        kind = _read_type(cursor, key)
        if kind is ValueType.ARRAY:
            raise ModelError(
                f"{cursor.path} cannot be read: {key!r} is an array of arrays, which llama.cpp lacks too."
            )
        count = cursor.unsigned(8, f"the length of {key!r}")
    number = 1 if count is None else count
    if kind is not ValueType.STRING:
        width = struct.calcsize(SCALAR_FORMATS[kind])
        return MetadataValue(kind, count, cursor.bytes(number * width, f"the value of {key!r}"))
    start = cursor.offset
    cursor.skip_strings(number, f"the text of {key!r}")
    return MetadataValue(kind, count, cursor.data[start : cursor.offset])


def _read_tensor(cursor: _Cursor) -> tuple[str, TensorType, tuple[int, ...], int, int]:
    name = cursor.string("a tensor name", limit=1_024)
    dimensions = cursor.unsigned(4, f"the dimensions of {name!r}")
    if not 1 <= dimensions <= _MAXIMUM_DIMENSIONS:
        raise ModelError(f"{cursor.path} is damaged: tensor {name!r} has {dimensions} dimensions.")
    shape = tuple(cursor.unsigned(8, f"the shape of {name!r}") for _ in range(dimensions))
    number = cursor.unsigned(4, f"the type of {name!r}")
    offset = cursor.unsigned(8, f"the offset of {name!r}")
    kind = TENSOR_TYPES.get(number)
    if kind is None:
        raise ModelError(
            f"{cursor.path}: tensor {name!r} has the tensor type {number}, which this build of llama.cpp does not "
            "know (or no longer knows). Convert the model again with a current llama.cpp."
        )
    elements = 1
    for length in shape:
        elements *= length
        if length < 1 or elements >= 1 << 62:
            raise ModelError(f"{cursor.path} is damaged: tensor {name!r} has the shape {shape}.")
    return name, kind, shape, offset, kind.row_bytes(shape[0]) * (elements // shape[0])


def _alignment(metadata: dict[str, MetadataValue], path: Path) -> int:
    found = metadata.get("general.alignment")
    if found is None:
        return DEFAULT_ALIGNMENT
    value = found.decode()
    if not isinstance(value, int) or not 8 <= value <= 1 << 20 or value & (value - 1):
        raise ModelError(f"{path} is damaged: general.alignment is {value!r}, expected a power of two.")
    return value


def _check_start(cursor: _Cursor) -> tuple[int, int]:
    """Check magic, byte order and version; returns the counts of tensors and of metadata entries."""
    path = cursor.path
    if cursor.end < 4 or cursor.data[:4] != MAGIC:
        raise ModelError(
            f"{path} is not a GGUF file: it does not start with the letters GGUF. Expected a .gguf model."
        )
    cursor.offset = 4
    version = cursor.unsigned(4, "the version")
    if version not in _VERSIONS:
        if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
            raise ModelError(f"{path} is a big-endian GGUF file; only little-endian files can be used. Convert it.")
        raise ModelError(f"{path} has GGUF version {version}; versions 2 and 3 can be read. Convert it again.")
    tensors, entries = cursor.unsigned(8, "the tensor count"), cursor.unsigned(8, "the metadata count")
    for count, what in ((tensors, "tensors"), (entries, "metadata entries")):
        if count > (cursor.end - cursor.offset) // _SMALLEST_ENTRY:
            raise ModelError(
                f"{path} is truncated or damaged: it claims {count} {what} in {len(cursor.data)} bytes. "
                "Get the file again."
            )
    return tensors, entries


def _parse(cursor: _Cursor) -> GgufFile:
    path = cursor.path
    tensor_count, entry_count = _check_start(cursor)
    metadata: dict[str, MetadataValue] = {}
    for _ in range(entry_count):
        key = cursor.string("a metadata key")
        if key in metadata:
            raise ModelError(f"{path} is damaged: the metadata key {key!r} is there twice.")
        metadata[key] = _read_value(cursor, key)
    listed = [_read_tensor(cursor) for _ in range(tensor_count)]
    alignment = _alignment(metadata, path)
    start = -(-cursor.offset // alignment) * alignment
    tensors: dict[str, Tensor] = {}
    for name, kind, shape, offset, size in listed:
        if name in tensors:
            raise ModelError(f"{path} is damaged: the tensor {name!r} is there twice.")
        if offset % alignment:
            raise ModelError(f"{path} is damaged: tensor {name!r} is not aligned to {alignment} bytes.")
        if start + offset + size > len(cursor.data):
            raise ModelError(
                f"{path} is truncated: tensor {name!r} ends at byte {start + offset + size}, the file has "
                f"{len(cursor.data)}. Get the file again."
            )
        tensors[name] = Tensor(name, kind, shape, path, start + offset, size)
    return GgufFile((path,), metadata, tensors)


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    try:
        if not path.is_file() and not path.is_dir() and path.exists():
            raise ModelError(f"{path} is not a regular file. Expected a .gguf file.")
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size == 0:
                raise ModelError(f"{path} is empty. Expected a .gguf model; get the file again.")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield data
    except IsADirectoryError as error:
        raise ModelError(f"{path} is a directory. Expected a .gguf file.") from error
    except FileNotFoundError as error:
        raise ModelError(f"no such file: {path}. Give the path of a .gguf file.") from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from error


def read_gguf(path: Path) -> GgufFile:
    """Metadata and tensors of one file.

    Raises ModelError: no such file, a directory, not a GGUF file, big-endian, truncated, or damaged.
    """
    with _mapped(path) as data:
        return _parse(_Cursor(data, path))
