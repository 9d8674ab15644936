"""What every link promises, checked for every implementation."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator

import pytest

from longspan.errors import RingError
from longspan.ring import delay
from longspan.ring.frame import Frame, Kind
from longspan.ring.link import Link
from tests.ring.link_pairs import KINDS, Ends

pytestmark = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
async def ends(kind: str) -> AsyncIterator[Ends]:
    async with KINDS[kind]() as both:
        yield both


def frames(count: int, seed: int = 0) -> Iterator[Frame]:
    """Frames of every size from nothing to a megabyte, each with its number."""
    generator = random.Random(seed)
    for number in range(count):
        size = generator.choice([0, 0, 1, 37, 1000, 65536, 1 << 20 if number % 50 == 7 else 5])
        yield Frame(Kind.ITERATION, number.to_bytes(4, "big"), generator.randbytes(size))


async def receive(link: Link, count: int, pause: float = 0.0) -> list[tuple[bytes, bytes]]:
    found = []
    for _ in range(count):
        frame = await link.receive()
        assert frame.kind is Kind.ITERATION
        found.append((frame.header, bytes(frame.payload)))
        if pause:
            await asyncio.sleep(pause)
    return found


async def send(link: Link, sent: list[Frame]) -> None:
    for frame in sent:
        await link.send(frame)


async def test_frames_arrive_whole_and_in_order_both_ways(ends: Ends) -> None:
    there, back = list(frames(200)), list(frames(200, seed=1))
    async with asyncio.timeout(20):
        _, _, at_right, at_left = await asyncio.gather(
            send(ends[0], there), send(ends[1], back), receive(ends[1], 200), receive(ends[0], 200)
        )
    assert at_right == [(frame.header, frame.payload) for frame in there]
    assert at_left == [(frame.header, frame.payload) for frame in back]


async def test_an_end_that_does_not_read_makes_the_other_wait_and_nothing_is_lost(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delay, "LINE_FRAMES", 100)
    left, right = ends
    payload = b"x" * (256 << 10)
    sent = 0

    async def fill() -> None:
        nonlocal sent
        for number in range(400):
            await left.send(Frame(Kind.ITERATION, number.to_bytes(4, "big"), payload))
            sent += 1

    async with asyncio.timeout(20):
        filling = asyncio.create_task(fill())
        last = -1
        while sent != last:
            last = sent
            await asyncio.sleep(0.15)
        assert not filling.done()
        assert sent < 300, "sending goes on although nobody reads"
        found = await receive(right, 400)
        await filling
    assert [int.from_bytes(header, "big") for header, _ in found] == list(range(400))
    assert all(body == payload for _, body in found)


async def test_sending_without_waiting_goes_as_far_as_there_is_room(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delay, "LINE_FRAMES", 100)
    left, right = ends
    payload = b"x" * (256 << 10)
    sent = 0
    while left.send_at_once(Frame(Kind.ITERATION, sent.to_bytes(4, "big"), payload)):
        sent += 1
        assert sent < 300, "sending goes on although nobody reads"
    assert sent > 0
    async with asyncio.timeout(20):
        found = await receive(right, sent)
        assert [int.from_bytes(header, "big") for header, _ in found] == list(range(sent))
        await left.send(Frame(Kind.ITERATION, b"last", payload))
        assert await receive(right, 1) == [(b"last", payload)], "what was refused was not sent"
    await left.close()
    assert not left.send_at_once(Frame(Kind.PING, b""))


async def test_what_was_sent_before_closing_arrives(ends: Ends, kind: str) -> None:
    left, right = ends
    await send(left, [Frame(Kind.ITERATION, bytes([number])) for number in range(10)])
    if kind.startswith("delayed"):
        await asyncio.sleep(0.03)
    await left.close()
    async with asyncio.timeout(5):
        assert [header for header, _ in await receive(right, 10)] == [bytes([number]) for number in range(10)]
        with pytest.raises(RingError, match="closed by the peer"):
            await right.receive()


async def test_closing_wakes_who_waits_for_a_frame(ends: Ends) -> None:
    left, right = ends
    waiting = asyncio.create_task(right.receive())
    await asyncio.sleep(0.01)
    await left.close()
    async with asyncio.timeout(5):
        with pytest.raises(RingError, match=r"the link to .* was closed by the peer"):
            await waiting


async def test_closing_wakes_who_waits_for_room(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delay, "LINE_FRAMES", 50)
    left, right = ends

    async def fill() -> None:
        while True:
            await left.send(Frame(Kind.ITERATION, b"", b"x" * (1 << 20)))

    filling = asyncio.create_task(fill())
    await asyncio.sleep(0.2)
    assert not filling.done()
    await right.close()
    async with asyncio.timeout(5):
        with pytest.raises(RingError):
            await filling


@pytest.mark.parametrize("closer", [0, 1])
async def test_nothing_goes_over_a_closed_link(ends: Ends, closer: int) -> None:
    await ends[closer].close()
    async with asyncio.timeout(5):
        for end in ends:
            with pytest.raises(RingError, match=r"link to .* (is closed|was closed by the peer|was lost)"):
                while True:  # the peer's closing needs a moment to arrive
                    await end.send(Frame(Kind.PING, b""))
                    await asyncio.sleep(0.001)
            with pytest.raises(RingError):
                while True:
                    await end.receive()


async def test_closing_twice_is_allowed(ends: Ends) -> None:
    for _ in range(2):
        await ends[0].close()
        await ends[1].close()


async def test_statistics_count_frames_and_bytes(ends: Ends) -> None:
    left, right = ends
    await left.send(Frame(Kind.PING, b"12345"))
    await left.send(Frame(Kind.ITERATION, b"123", b"1234567"))
    async with asyncio.timeout(5):
        await right.receive()
        await right.receive()
    assert (left.statistics.frames_sent, left.statistics.bytes_sent) == (2, 2 * 24 + 15)
    assert (right.statistics.frames_received, right.statistics.bytes_received) == (2, 2 * 24 + 15)
    assert right.statistics.queued == 0


async def test_ends_have_names(ends: Ends) -> None:
    assert ends[0].peer != ends[1].peer
    assert "?" not in ends[0].peer
