"""The frame: the unit of bytes on a link.

    offset  bytes  field
    0       4      magic, "LSPN"
    4       2      protocol version, big-endian
    6       1      kind
    7       1      reserved, 0
    8       4      header length, big-endian
    12      8      payload length, big-endian
    20      …      header: msgpack (see `messages`), then the payload: raw tensor bytes
    …       4      CRC-32 of all that, big-endian: TCP's own sum misses an error now and then, and a changed bit in
                   activations would be another answer. A frame of another protocol version is read without it

Lengths are checked against bounds before anything is allocated. The layout of the first 20 bytes and of the frames
in `STABLE_KINDS` never changes, so that peers of two versions can tell each other what they are.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
import zlib

from longspan.errors import ProtocolError

PROTOCOL_VERSION = 3
"""Raised with any change of a field that travels."""

MAGIC = b"LSPN"
_TLS_HELLO = b"\x16\x03\x01"
PREFIX = struct.Struct(">4sHBBIQ")
CHECKSUM = struct.Struct(">I")
MAX_HEADER_BYTES = 32 << 20
"""Room for 256 slots that all begin in one iteration, each with the largest grammar and logit bias."""
MAX_PAYLOAD_BYTES = 256 << 20
MAX_HANDSHAKE_HEADER_BYTES = 64 << 10


class Kind(enum.IntEnum):
    """What a frame carries."""

    HELLO = 1
    REFUSE = 2
    PROGRESS = 3
    READY = 4
    WELCOME = 5
    ITERATION = 6
    RESULT = 7
    PING = 8
    PONG = 9
    FAILED = 10
    PASSED = 11
    CHALLENGE = 12
    PROOF = 13
    SURVEY = 14
    REPORT = 15
    WANT = 16
    CHUNK = 17
    JOIN = 18
    LEASE = 19
    LEAVE = 20


STABLE_KINDS = frozenset((Kind.HELLO, Kind.REFUSE, Kind.CHALLENGE, Kind.PROOF))
"""What peers of two versions say to each other before they know that they are of two versions."""


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """One frame. `payload` is any object with the buffer protocol, contiguous bytes."""

    kind: Kind
    header: bytes
    payload: bytes | memoryview = b""

    @property
    def size(self) -> int:
        """Bytes that it takes on a link."""
        return PREFIX.size + len(self.header) + len(self.payload) + CHECKSUM.size

    def parts(self) -> list[bytes | memoryview]:
        """The frame as buffers to write one after the other."""
        prefix = PREFIX.pack(MAGIC, PROTOCOL_VERSION, self.kind, 0, len(self.header), len(self.payload))
        begin = prefix + self.header
        if not len(self.payload):
            return [begin + CHECKSUM.pack(zlib.crc32(begin))]
        return [begin, self.payload, CHECKSUM.pack(zlib.crc32(self.payload, zlib.crc32(begin)))]


@dataclasses.dataclass(frozen=True, slots=True)
class Prefix:
    """The first 20 bytes of a frame, checked. checksum: of these bytes."""

    version: int
    kind: Kind
    header_bytes: int
    payload_bytes: int
    checksum: int

    @property
    def body_bytes(self) -> int:
        """Bytes that follow."""
        ending = CHECKSUM.size if self.version == PROTOCOL_VERSION else 0
        return self.header_bytes + self.payload_bytes + ending

    def frame(self, body: memoryview) -> Frame:
        """The frame of this prefix and the bytes that follow. Raises ProtocolError when they were changed."""
        end = self.header_bytes + self.payload_bytes
        if len(body) > end and zlib.crc32(body[:end], self.checksum) != CHECKSUM.unpack(body[end:])[0]:
            raise ProtocolError(
                f"a {self.kind.name} frame was changed on its way (its checksum is wrong): the link is not reliable"
            )
        return Frame(self.kind, bytes(body[: self.header_bytes]), body[self.header_bytes : end])


def read_prefix(
    data: bytes | bytearray | memoryview,
    max_header_bytes: int = MAX_HEADER_BYTES,
    max_payload_bytes: int = MAX_PAYLOAD_BYTES,
) -> Prefix:
    """Decode and check the first 20 bytes of a frame.

    Raises ProtocolError when they are not a frame, or announce more than the bounds allow. Only what is said before
    versions are known may be of another protocol version.
    """
    if len(data) != PREFIX.size:
        raise ProtocolError(f"a frame begins with {PREFIX.size} bytes, got {len(data)}")
    magic, version, kind, _, header_bytes, payload_bytes = PREFIX.unpack(data)
    if magic[:3] == _TLS_HELLO:
        raise ProtocolError(
            "the peer speaks TLS, and this side was started without --keys and --token-file: give it the same"
        )
    if magic != MAGIC:
        raise ProtocolError(
            f"the peer does not speak Longspan: it sent {bytes(magic)!r} where {MAGIC!r} was expected. "
            "Check that the address is that of a `longspan stage`."
        )
    try:
        known = Kind(kind)
    except ValueError:
        raise ProtocolError(
            f"frame of unknown kind {kind} (protocol {version}, ours is {PROTOCOL_VERSION})"
        ) from None
    if version != PROTOCOL_VERSION and known not in STABLE_KINDS:
        raise ProtocolError(
            f"frame of protocol {version}, ours is {PROTOCOL_VERSION}: install the same Longspan on both"
        )
    if header_bytes > max_header_bytes:
        raise ProtocolError(
            f"frame announces a header of {header_bytes} bytes, at most {max_header_bytes} are allowed"
        )
    if payload_bytes > max_payload_bytes:
        raise ProtocolError(
            f"frame announces {payload_bytes} bytes of tensors, at most {max_payload_bytes} are allowed"
        )
    return Prefix(version, known, header_bytes, payload_bytes, zlib.crc32(data))
