"""Messages that are spoken outside of iterations: a struct in a frame of a kind of its own."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from longspan.errors import ProtocolError
from longspan.ring.frame import Frame, Kind

_M = TypeVar("_M", bound=msgspec.Struct)


class MessageCodec(Generic[_M]):
    """Puts messages of one type into frames of one kind, and takes them out again."""

    def __init__(self, kind: Kind, message: type[_M]) -> None:
        self.kind = kind
        self._name = message.__name__
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(message)

    def encode(self, message: _M, payload: bytes | memoryview = b"") -> Frame:
        """A frame that carries the message."""
        return Frame(self.kind, self._encoder.encode(message), payload)

    def decode(self, frame: Frame) -> _M:
        """The message in a frame. Raises ProtocolError when the frame is of another kind or does not hold it."""
        if frame.kind is not self.kind:
            raise ProtocolError(f"expected a {self.kind.name} frame, got {frame.kind.name}")
        try:
            return self._decoder.decode(frame.header)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise ProtocolError(f"the {frame.kind.name} frame does not hold {self._name}: {error}") from None
