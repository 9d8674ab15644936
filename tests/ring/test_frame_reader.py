from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.errors import ProtocolError
from longspan.ring.frame import MAGIC, MAX_HANDSHAKE_HEADER_BYTES, PREFIX, PROTOCOL_VERSION, Frame, Kind
from longspan.ring.frame_reader import COMMON_BYTES, FrameReader

SIZES = st.sampled_from([0, 1, 100, COMMON_BYTES - PREFIX.size - 4, COMMON_BYTES, 2 * COMMON_BYTES + 7])
FRAMES = st.lists(st.tuples(st.sampled_from(Kind), SIZES, st.integers(0, 255)), max_size=6)


def feed(reader: FrameReader, data: bytes) -> list[Frame]:
    frames = []
    while data:
        buffer = reader.buffer()
        assert len(buffer) > 0
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        reader.filled(count)
        data = data[count:]
        while (frame := reader.next()) is not None:
            frames.append(frame)
    return frames


@settings(deadline=None, max_examples=60)
@given(wanted=FRAMES, cuts=st.lists(st.integers(0, 1 << 17), max_size=12))
def test_frames_are_the_same_however_their_bytes_come(wanted: list[tuple[Kind, int, int]], cuts: list[int]) -> None:
    sent = [Frame(kind, bytes([byte]), bytes([byte]) * size) for kind, size, byte in wanted]
    stream = b"".join(bytes(part) for frame in sent for part in frame.parts())
    reader = FrameReader()
    reader.max_payload_bytes = 4 * COMMON_BYTES
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    got = [frame for low, high in itertools.pairwise(places) for frame in feed(reader, stream[low:high])]
    assert [(frame.kind, frame.header, bytes(frame.payload)) for frame in got] == [
        (frame.kind, frame.header, bytes(frame.payload)) for frame in sent
    ]


def test_a_frame_stays_as_it_is_while_others_are_read() -> None:
    reader = FrameReader()
    first, second = (b"".join(Frame(Kind.PING, header).parts()) for header in (b"first", b"other"))
    (frame,) = feed(reader, first)
    feed(reader, second)
    assert frame.header == b"first"


@pytest.mark.parametrize(("header", "payload"), [(MAX_HANDSHAKE_HEADER_BYTES + 1, 0), (8, 1), (8, 1 << 60)])
def test_before_the_handshake_ends_nothing_large_is_read(header: int, payload: int) -> None:
    with pytest.raises(ProtocolError):
        feed(FrameReader(), PREFIX.pack(MAGIC, PROTOCOL_VERSION, Kind.HELLO, 0, header, payload))


def test_what_belongs_to_no_frame_can_be_taken_out() -> None:
    reader = FrameReader()
    whole = b"".join(Frame(Kind.PING, b"first").parts())
    assert len(feed(reader, whole + b"\x16\x03\x01")) == 1
    assert reader.take_raw() == b"\x16\x03\x01"
    assert [frame.header for frame in feed(reader, whole)] == [b"first"]
