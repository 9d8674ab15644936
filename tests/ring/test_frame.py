from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.errors import ProtocolError
from longspan.ring.frame import (
    CHECKSUM,
    MAGIC,
    MAX_HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    PREFIX,
    PROTOCOL_VERSION,
    Frame,
    Kind,
    read_prefix,
)


def prefix(version: int = PROTOCOL_VERSION, kind: int = Kind.PING, header: int = 0, payload: int = 0) -> bytes:
    return PREFIX.pack(MAGIC, version, kind, 0, header, payload)


@settings(deadline=None)
@given(kind=st.sampled_from(Kind), header=st.binary(max_size=64), payload=st.binary(max_size=64))
def test_what_is_written_is_read(kind: Kind, header: bytes, payload: bytes) -> None:
    data = b"".join(Frame(kind, header, payload).parts())
    read = read_prefix(data[: PREFIX.size])
    assert (read.version, read.kind) == (PROTOCOL_VERSION, kind)
    assert (read.header_bytes, read.payload_bytes) == (len(header), len(payload))
    assert data[PREFIX.size : -CHECKSUM.size] == header + payload
    assert read.body_bytes == len(data) - PREFIX.size
    frame = read.frame(memoryview(data)[PREFIX.size :])
    assert (frame.kind, frame.header, bytes(frame.payload)) == (kind, header, payload)


@settings(deadline=None)
@given(header=st.binary(max_size=64), payload=st.binary(max_size=64), data=st.data())
def test_a_changed_bit_is_seen(header: bytes, payload: bytes, data: st.DataObject) -> None:
    changed = bytearray(b"".join(Frame(Kind.ITERATION, header, payload).parts()))
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((ProtocolError, ValueError)):
        read = read_prefix(changed[: PREFIX.size])
        body = memoryview(changed)[PREFIX.size :]
        if read.version != PROTOCOL_VERSION or read.body_bytes > len(body):
            raise ValueError("another version, or the frame would be waited for")
        read.frame(body[: read.body_bytes])


def test_a_frame_is_written_in_few_pieces_and_its_payload_is_not_copied() -> None:
    payload = memoryview(bytearray(8))
    assert Frame(Kind.ITERATION, b"header", payload).parts()[1] is payload
    assert len(Frame(Kind.PING, b"header").parts()) == 1


@settings(deadline=None)
@given(data=st.binary(max_size=2 * PREFIX.size))
def test_random_bytes_are_a_prefix_or_a_protocol_error(data: bytes) -> None:
    try:
        read = read_prefix(data)
    except ProtocolError:
        return
    assert data[:4] == MAGIC
    assert read.header_bytes <= MAX_HEADER_BYTES
    assert read.payload_bytes <= MAX_PAYLOAD_BYTES


@settings(deadline=None)
@given(data=st.data())
def test_a_mutated_prefix_is_a_prefix_or_a_protocol_error(data: st.DataObject) -> None:
    mutated = bytearray(prefix(header=7, payload=9))
    for _ in range(data.draw(st.integers(1, 4))):
        mutated[data.draw(st.integers(0, PREFIX.size - 1))] = data.draw(st.integers(0, 255))
    try:
        read = read_prefix(mutated, 100, 1000)
    except ProtocolError:
        return
    assert read.header_bytes <= 100
    assert read.payload_bytes <= 1000


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GET / HTTP/1.1\r\nHost", r"does not speak Longspan: it sent b'GET ' where b'LSPN' was expected.*stage"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(9), "speaks TLS.*--keys and --token-file"),
        (prefix(kind=0), "unknown kind 0"),
        (prefix(kind=99), f"unknown kind 99 .protocol {PROTOCOL_VERSION}, ours is {PROTOCOL_VERSION}"),
        (prefix(version=7), f"protocol 7, ours is {PROTOCOL_VERSION}: install the same Longspan"),
        (prefix(header=101), "a header of 101 bytes, at most 100"),
        (prefix(header=2**32 - 1), "a header of 4294967295 bytes, at most 100"),
        (prefix(payload=2**64 - 1), "18446744073709551615 bytes of tensors, at most 1000"),
        (prefix()[:-1], "begins with 20 bytes, got 19"),
    ],
)
def test_says_what_is_wrong_with_a_prefix(data: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        read_prefix(data, 100, 1000)


def test_what_is_said_before_versions_are_known_is_read_whatever_its_version() -> None:
    early = {Kind.HELLO, Kind.REFUSE, Kind.CHALLENGE, Kind.PROOF}
    for version in (0, PROTOCOL_VERSION + 1, 65535):
        for kind in early:
            assert read_prefix(prefix(version, kind)).version == version
        for kind in set(Kind) - early:
            with pytest.raises(ProtocolError, match="install the same Longspan"):
                read_prefix(prefix(version, kind))
