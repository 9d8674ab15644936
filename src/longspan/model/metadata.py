"""Metadata values of a GGUF file, kept as the bytes of the file so that a copy is exact."""

from __future__ import annotations

import dataclasses
import enum
import struct
from collections.abc import Sequence
from typing import TypeAlias

Scalar: TypeAlias = int | float | bool | str
Decoded: TypeAlias = Scalar | list[int] | list[float] | list[bool] | list[str]


class ValueType(enum.IntEnum):
    """The value types of GGUF version 3."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


SCALAR_FORMATS: dict[ValueType, str] = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "?",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}
"""`struct` letters of the fixed-size types, little-endian in the file."""


@dataclasses.dataclass(frozen=True, slots=True)
class MetadataValue:
    """One value. `element` is the type of a scalar itself, or of the elements of an array.

    count: None for a scalar, else the length of the array. raw: the bytes after type and length; strings in it are
    each a 64-bit length and UTF-8 text.
    """

    element: ValueType
    count: int | None
    raw: bytes

    @property
    def is_array(self) -> bool:
        return self.count is not None

    def decode(self) -> Decoded:
        """The value as Python objects. Invalid UTF-8 in a string (byte-level token pieces) becomes U+FFFD."""
        number = 1 if self.count is None else self.count
        values: list[Scalar]
        if self.element is ValueType.STRING:
            values = []
            offset = 0
            for _ in range(number):
                (length,) = struct.unpack_from("<Q", self.raw, offset)
                offset += 8
                values.append(self.raw[offset : offset + length].decode("utf-8", "replace"))
                offset += length
        else:
            values = list(struct.unpack(f"<{number}{SCALAR_FORMATS[self.element]}", self.raw))
        return values[0] if self.count is None else values  # type: ignore[return-value]

    def slice(self, start: int, end: int) -> MetadataValue:
        """The elements [start, end) of an array of numbers or booleans."""
        width = struct.calcsize(SCALAR_FORMATS[self.element])
        return MetadataValue(self.element, end - start, self.raw[start * width : end * width])

    def encode(self) -> bytes:
        """Type, length and value as they stand in a file after the key."""
        if self.count is None:
            return struct.pack("<I", self.element) + self.raw
        return struct.pack("<IIQ", ValueType.ARRAY, self.element, self.count) + self.raw


def scalar(kind: ValueType, value: Scalar) -> MetadataValue:
    """A number or boolean of the given type."""
    return MetadataValue(kind, None, struct.pack(f"<{SCALAR_FORMATS[kind]}", value))


def uint32(value: int) -> MetadataValue:
    return scalar(ValueType.UINT32, value)


def text(value: str) -> MetadataValue:
    data = value.encode()
    return MetadataValue(ValueType.STRING, None, struct.pack("<Q", len(data)) + data)


def array(kind: ValueType, values: Sequence[int | float | bool]) -> MetadataValue:
    """An array of numbers or booleans of the given type."""
    return MetadataValue(kind, len(values), struct.pack(f"<{len(values)}{SCALAR_FORMATS[kind]}", *values))
