from __future__ import annotations

import asyncio

import pytest

from longspan.errors import RingError
from longspan.ring.delay import DelayedLink, delayed
from longspan.ring.frame import Frame, Kind
from longspan.ring.in_process import pair
from tests.ring.link_pairs import tcp_ends

DELAY = 0.06
LATE = 0.15
"""How late a frame may come on a busy machine, in seconds."""


async def test_every_frame_comes_late_by_the_delay_and_they_overlap_in_flight() -> None:
    loop = asyncio.get_running_loop()
    async with tcp_ends() as (left, right):
        far = DelayedLink(left, DELAY)
        sent, found = [], []
        for number in range(10):
            sent.append(loop.time())
            await far.send(Frame(Kind.PING, bytes([number])))
            await asyncio.sleep(0.01)
        for number in range(10):
            assert (await right.receive()).header == bytes([number])
            found.append(loop.time())
        await far.close()
    assert sent[-1] - sent[0] < 10 * 0.01 + LATE, "sending does not wait for what is in flight"
    # The first frames were taken only after the last was sent.
    for start, arrival in zip(sent[-3:], found[-3:], strict=True):
        assert DELAY <= arrival - start < DELAY + LATE
    assert found[-1] - sent[0] < 10 * DELAY, "frames went one after the other, not side by side"


async def test_receiving_is_not_delayed() -> None:
    left, right = pair()
    far = DelayedLink(left, 10.0)
    await right.send(Frame(Kind.PING, b"x"))
    async with asyncio.timeout(1):
        assert (await far.receive()).header == b"x"
    await far.close()


async def test_what_is_in_flight_is_lost_when_the_line_is_cut() -> None:
    left, right = pair()
    far = DelayedLink(left, 0.05)
    await far.send(Frame(Kind.PING, b"lost"))
    await far.close()
    await asyncio.sleep(0.1)
    with pytest.raises(RingError, match="closed by the peer"):
        await right.receive()


async def test_a_lost_line_is_noticed_by_the_sender() -> None:
    left, right = pair()
    far = DelayedLink(left, 0.01)
    await right.close()
    with pytest.raises(RingError, match="closed"):
        async with asyncio.timeout(5):
            while True:
                await far.send(Frame(Kind.PING, b""))
                await asyncio.sleep(0.005)
    await far.close()


async def test_no_delay_is_no_link_of_its_own() -> None:
    left, _ = pair()
    assert delayed(left, 0.0) is left
    far = delayed(left, 5.0)
    assert isinstance(far, DelayedLink)
    assert far.peer == left.peer
    assert far.statistics is left.statistics
    await far.close()
