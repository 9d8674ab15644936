from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.errors import ProtocolError, RingError
from longspan.ring.dial import connect
from longspan.ring.frame import MAX_HANDSHAKE_HEADER_BYTES, MAX_HEADER_BYTES, MAX_PAYLOAD_BYTES, Frame, Kind, Prefix
from longspan.ring.tcp import QUEUE_FRAMES, TcpLink
from tests.ring.link_pairs import listening, raw_end, tcp_ends
from tests.ring.test_frame import prefix
from tests.ring.test_messages import FRAMES


def raw(frame: Frame) -> bytes:
    return b"".join(bytes(part) for part in frame.parts())


async def write(plain: socket.socket, pieces: Iterable[bytes]) -> None:
    loop = asyncio.get_running_loop()
    for piece in pieces:
        await loop.sock_sendall(plain, piece)
        await asyncio.sleep(0)


async def test_bytes_split_at_every_offset_are_the_same_frames() -> None:
    sent = [FRAMES["hello"], Frame(Kind.PING, b""), FRAMES["result"]]
    data = b"".join(map(raw, sent))
    for cut in range(1, len(data)):
        async with raw_end() as (plain, link), asyncio.timeout(5):
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await write(plain, [data[:cut]])
            if cut % 3 == 0:
                await asyncio.sleep(0.001)
            await write(plain, [data[cut:]])
            found = [await link.receive() for _ in sent]
        assert [(frame.kind, frame.header) for frame in found] == [(frame.kind, frame.header) for frame in sent], (
            cut
        )


async def test_bytes_one_at_a_time() -> None:
    frame = FRAMES["iteration float32"]
    async with raw_end() as (plain, link), asyncio.timeout(10):
        link.open_payloads()
        await write(plain, (bytes([byte]) for byte in raw(frame)))
        found = await link.receive()
        assert (found.header, bytes(found.payload)) == (frame.header, bytes(frame.payload))


async def test_many_frames_in_one_segment() -> None:
    async with raw_end() as (plain, link), asyncio.timeout(5):
        await write(plain, [b"".join(raw(Frame(Kind.PING, bytes([number]))) for number in range(50))])
        assert [(await link.receive()).header for _ in range(50)] == [bytes([number]) for number in range(50)]


async def test_reading_stops_when_frames_wait_and_goes_on_when_they_are_taken() -> None:
    """Bounded on this side too: what is not taken stays in the sockets."""
    async with tcp_ends() as (left, right), asyncio.timeout(10):
        for number in range(10 * QUEUE_FRAMES):
            await left.send(Frame(Kind.PING, number.to_bytes(4, "big")))
        await asyncio.sleep(0.1)
        # What was read in one go may go over the bound by less than one buffer of the socket.
        assert right.statistics.queued == QUEUE_FRAMES
        for number in range(10 * QUEUE_FRAMES):
            assert (await right.receive()).header == number.to_bytes(4, "big")
            assert right.statistics.queued <= QUEUE_FRAMES


async def test_the_peer_vanishes_in_the_middle_of_a_frame() -> None:
    async with raw_end() as (plain, link), asyncio.timeout(5):
        await write(plain, [raw(FRAMES["hello"]) + raw(FRAMES["result"])[:-1]])
        plain.close()
        assert (await link.receive()).kind is Kind.HELLO
        with pytest.raises(RingError, match="closed by the peer"):
            await link.receive()


async def test_a_reset_says_so() -> None:
    async with raw_end() as (plain, link), asyncio.timeout(5):
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        plain.close()
        with pytest.raises(RingError, match=r"lost: .*reset"):
            await link.receive()


async def test_small_frames_leave_at_once() -> None:
    async with tcp_ends() as (left, _):
        assert left._transport is not None
        connection = left._transport.get_extra_info("socket")
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(
    "announced",
    [
        prefix(kind=Kind.HELLO, header=MAX_HANDSHAKE_HEADER_BYTES + 1),
        prefix(kind=Kind.HELLO, header=2**32 - 1),
        prefix(kind=Kind.ITERATION, header=5, payload=1),
        prefix(kind=Kind.ITERATION, payload=2**64 - 1),
    ],
)
async def test_a_stranger_cannot_make_a_stage_allocate(announced: bytes) -> None:
    async with raw_end() as (plain, link), asyncio.timeout(5):
        tracemalloc.start()
        try:
            await write(plain, [announced])
            with pytest.raises(ProtocolError, match="announces"):
                await link.receive()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < MAX_HANDSHAKE_HEADER_BYTES


@pytest.mark.parametrize(
    "announced", [prefix(header=MAX_HEADER_BYTES + 1), prefix(header=1, payload=MAX_PAYLOAD_BYTES + 1)]
)
async def test_bounds_hold_after_the_handshake_too(announced: bytes) -> None:
    async with raw_end() as (plain, link), asyncio.timeout(5):
        link.open_payloads()
        await write(plain, [announced])
        with pytest.raises(ProtocolError, match="announces"):
            await link.receive()
        with contextlib.suppress(ConnectionError):
            assert await asyncio.get_running_loop().sock_recv(plain, 1) == b"", "the link hangs up"


async def _drain(link: TcpLink, sizes: list[int]) -> None:
    original = link._reader._open

    def open_own(prefix: Prefix, body: int) -> None:
        sizes.append(prefix.body_bytes)
        original(prefix, body)

    link._reader._open = open_own  # type: ignore[method-assign]
    with contextlib.suppress(RingError):
        while True:
            await link.receive()


async def _feed(data: bytes) -> list[int]:
    sizes: list[int] = []
    async with raw_end() as (plain, link), asyncio.timeout(5):
        reading = asyncio.create_task(_drain(link, sizes))
        await asyncio.sleep(0)
        with contextlib.suppress(ConnectionError):
            await write(plain, [data])
        plain.close()
        await reading
    return sizes


@settings(deadline=None, max_examples=60)
@given(data=st.binary(max_size=200))
def test_random_bytes_end_a_link_and_nothing_else(data: bytes) -> None:
    assert all(size <= MAX_HANDSHAKE_HEADER_BYTES for size in asyncio.run(_feed(data)))


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_mutated_frames_end_a_link_and_nothing_else(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(FRAMES)), min_size=1, max_size=4))
    stream = bytearray(b"".join(raw(FRAMES[name]) for name in names))
    for _ in range(data.draw(st.integers(0, 6))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    del stream[data.draw(st.integers(0, len(stream))) :]
    assert all(size <= MAX_HANDSHAKE_HEADER_BYTES for size in asyncio.run(_feed(bytes(stream))))


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("127.0.0.1", "cannot reach 127.0.0.1:1: .*refused.*longspan stage --listen"),
        ("no-such-host.invalid", "cannot reach no-such-host.invalid:1: .*longspan stage"),
        ("a..b", "cannot reach a..b:1: this is not an address"),
    ],
)
async def test_says_who_cannot_be_reached(host: str, message: str) -> None:
    with pytest.raises(RingError, match=message):
        await connect(host, 1, 10.0)


async def test_a_port_that_does_not_exist() -> None:
    with pytest.raises(RingError, match=r"cannot reach 127.0.0.1:70000: this is not an address"):
        await connect("127.0.0.1", 70000, 5.0)


async def test_nobody_answers_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_arguments: object) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
    with pytest.raises(RingError, match=r"no answer from 192.0.2.1:7001 within 0.05 s.*firewall"):
        await connect("192.0.2.1", 7001, 0.05)


async def test_closing_does_not_wait_for_an_end_that_never_reads() -> None:
    accepted: asyncio.Future[TcpLink] = asyncio.get_running_loop().create_future()
    async with listening(accepted.set_result) as port:
        with socket.socket() as plain:
            plain.setblocking(False)
            await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", port))
            link = await accepted
            link.open_payloads()
            sending = asyncio.create_task(link.send(Frame(Kind.ITERATION, b"", bytes(64 << 20))))
            await sending
            async with asyncio.timeout(3):
                await link.close()


def test_the_reader_always_has_room_for_the_next_byte() -> None:
    """An empty buffer handed to the socket would end the connection."""
    link = TcpLink()
    rest = raw(FRAMES["ping"]) + raw(Frame(Kind.PING, b"")) + raw(FRAMES["progress"])
    while rest:
        buffer = link.get_buffer(-1)
        taken = min(len(buffer), 7, len(rest))
        assert taken > 0
        buffer[:taken] = rest[:taken]
        rest = rest[taken:]
        link.buffer_updated(taken)
    assert link.statistics.frames_received == 3


async def test_frames_from_another_thread_arrive_whole_and_in_order() -> None:
    """Large ones fill the socket in the middle of a frame; the loop writes the rest, and its own frames between."""
    frames = 200
    rng = random.Random(0)
    sizes = [rng.choice([0, 10, 5000, 300_000, 3_000_000]) for _ in range(frames)]
    async with tcp_ends() as (left, right), asyncio.timeout(60):
        left.open_payloads()
        right.open_payloads()
        refused = 0

        def send_all() -> None:
            nonlocal refused
            for number, size in enumerate(sizes):
                frame = Frame(Kind.ITERATION, number.to_bytes(4, "big"), bytes([number % 256]) * size)
                while not left.send_from_thread(frame):
                    refused += 1
                    time.sleep(0.0005)

        async def own() -> None:
            for number in range(frames):
                await left.send(Frame(Kind.PING, number.to_bytes(4, "big")))
                await asyncio.sleep(0.001)

        sending = asyncio.gather(asyncio.to_thread(send_all), own())
        found: dict[Kind, list[int]] = {Kind.ITERATION: [], Kind.PING: []}
        for _ in range(2 * frames):
            frame = await right.receive()
            number = int.from_bytes(frame.header, "big")
            found[frame.kind].append(number)
            if frame.kind is Kind.ITERATION:
                assert bytes(frame.payload) == bytes([number % 256]) * sizes[number]
        await sending
        assert found[Kind.ITERATION] == found[Kind.PING] == list(range(frames))
        assert refused, "the socket was never full"
        assert left.statistics.bytes_sent == right.statistics.bytes_received


async def test_a_lost_link_takes_nothing_from_another_thread() -> None:
    async with tcp_ends() as (left, right), asyncio.timeout(10):
        await right.close()
        with pytest.raises(RingError):
            await left.receive()
        assert not left.send_from_thread(Frame(Kind.PING, b""))


async def test_a_frame_is_offered_early_and_none_overtakes_one_that_was_declined() -> None:
    async with raw_end() as (plain, link), asyncio.timeout(5):
        offered: list[bytes] = []
        last = asyncio.Event()

        def taker(frame: Frame) -> bool:
            offered.append(frame.header)
            if frame.header == b"4":
                last.set()
            return frame.header != b"1"

        link.take_early(taker)
        await write(plain, [b"".join(raw(Frame(Kind.PING, bytes([number]))) for number in b"0123")])
        assert [(await link.receive()).header for _ in range(3)] == [b"1", b"2", b"3"]
        assert offered == [b"0", b"1"]
        await write(plain, [raw(Frame(Kind.PING, b"4"))])
        await last.wait()
