"""Bytes that are nearly right: frames of the protocol with something wrong in them."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Sequence

from longspan.ring.frame import CHECKSUM, MAGIC, PREFIX, PROTOCOL_VERSION

NASTY = (
    *(bytes([byte]) for byte in (0x00, 0x7F, 0x80, 0x90, 0xC0, 0xC1, 0xCA, 0xCB, 0xCF, 0xD3, 0xFF)),
    b"\xcf" + b"\xff" * 8,  # the largest whole number
    b"\xd3\x80" + b"\x00" * 7,  # the smallest
    b"\xcb\x7f\xf8" + b"\x00" * 6,  # NaN
    b"\xcb\x7f\xf0" + b"\x00" * 6,  # infinity
    b"\xdd\xff\xff\xff\xff",  # a list of four thousand million things
    b"\xdf\xff\xff\xff\xff",  # a map of as many
    b"\xdb\xff\xff\xff\xff",  # a text of four gigabytes
    b"\xc6\xff\xff\xff\xff",  # as many bytes
    b"\xdc\xff\xff",
    b"\x91" * 2000,  # lists in lists
    b"\x81\xa1a" * 700,  # maps in maps
    b"\xd9\x04\xff\xfe\xfd\xfc",  # a text that is no text
    b"LSPN",
)


class Mutator:
    """Makes wrong frames out of right ones; the same ones for the same seed."""

    def __init__(self, seed: int, right: Sequence[bytes]) -> None:
        self._random = random.Random(seed)
        self._right = list(right)

    def frames(self) -> bytes:
        """One to three frames, nearly all of them with something wrong."""
        chance = self._random
        if chance.random() < 0.03:
            return chance.randbytes(chance.randrange(200))
        pieces = [chance.choice(self._right) for _ in range(chance.choice((1, 1, 1, 2, 3)))]
        wrong = chance.randrange(len(pieces))
        pieces[wrong] = self._wrong(pieces[wrong])
        return b"".join(pieces)

    def _wrong(self, frame: bytes) -> bytes:
        kind = self._random.random()
        if kind < 0.15:
            return self._prefix(frame)
        header_bytes, payload_bytes = PREFIX.unpack(frame[: PREFIX.size])[4:]
        body, ending = frame[PREFIX.size : -CHECKSUM.size], frame[-CHECKSUM.size :]
        header, payload = self._bytes(body[:header_bytes]), body[header_bytes:]
        if payload_bytes and kind < 0.25:
            payload = self._bytes(payload)
        if kind < 0.95:
            # With lengths and checksum that fit, so that the parsers behind them are reached.
            prefix = PREFIX.pack(MAGIC, PROTOCOL_VERSION, frame[6], 0, len(header), len(payload))
            return prefix + header + payload + CHECKSUM.pack(zlib.crc32(prefix + header + payload))
        return frame[: PREFIX.size] + header + payload + ending

    def _prefix(self, frame: bytes) -> bytes:
        chance = self._random
        magic, version, kind, reserved, header, payload = PREFIX.unpack(frame[: PREFIX.size])
        lengths = (0, 1, 2**15, 2**16 + 1, 2**31, 2**32 - 1)
        match chance.randrange(6):
            case 0:
                magic = chance.randbytes(4)
            case 1:
                version = chance.choice((0, 1, 2, 4, 65535))
            case 2:
                kind = chance.randrange(256)
            case 3:
                header = chance.choice(lengths)
            case 4:
                payload = chance.choice((*lengths, 2**63, 2**64 - 1))
            case _:
                return frame[: chance.randrange(len(frame) + 1)]
        return PREFIX.pack(magic, version, kind, reserved, header, payload) + frame[PREFIX.size :]

    def _bytes(self, data: bytes) -> bytes:
        chance = self._random
        wrong = bytearray(data)
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            at = chance.randrange(len(wrong) + 1)
            match chance.randrange(6):
                case 0 if wrong:
                    wrong[at % len(wrong)] ^= 1 << chance.randrange(8)
                case 1 if wrong:
                    wrong[at % len(wrong)] = chance.randrange(256)
                case 2:
                    wrong[at:at] = chance.choice(NASTY)
                case 3:
                    nasty = chance.choice(NASTY)
                    wrong[at : at + len(nasty)] = nasty
                case 4:
                    del wrong[at : at + chance.randrange(1, 9)]
                case _:
                    number = chance.choice((0, 1, 255, 65535, 2**31 - 1, 2**32 - 1))
                    wrong[at:at] = b"\xce" + struct.pack(">I", number)
        return bytes(wrong)
