"""Frames on their way out: at once while the link takes them, in order when it does not."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from longspan.errors import RingError
from longspan.ring.frame import Frame, Kind
from longspan.ring.in_process import QUEUE_FRAMES, InProcessLink, pair
from longspan.ring.outbox import Outbox


def numbered(number: int, kind: Kind = Kind.ITERATION) -> Frame:
    return Frame(kind, number.to_bytes(4, "big"))


async def received(link: InProcessLink, count: int) -> list[int]:
    async with asyncio.timeout(5):
        return [int.from_bytes((await link.receive()).header, "big") for _ in range(count)]


async def test_a_frame_leaves_at_once_while_the_link_takes_it() -> None:
    left, right = pair()
    sent: list[Frame] = []
    outbox = Outbox(lambda frame: left, sent.append)
    outbox.put(numbered(1))
    assert len(sent) == 1, "without waiting for a task"
    assert await received(right, 1) == [1]


async def test_order_is_kept_when_the_link_is_full_and_when_it_is_not_any_more() -> None:
    left, right = pair()
    sent: list[int] = []
    outbox = Outbox(lambda frame: left, lambda frame: sent.append(int.from_bytes(frame.header, "big")))
    running = asyncio.create_task(outbox.run())
    for number in range(3 * QUEUE_FRAMES):
        outbox.put(numbered(number))
        if number % 50 == 0:
            await asyncio.sleep(0)
    assert len(sent) == QUEUE_FRAMES
    found: list[int] = []
    number = 3 * QUEUE_FRAMES
    while len(found) < 4 * QUEUE_FRAMES:
        found += await received(right, 1)
        if number < 4 * QUEUE_FRAMES:
            outbox.put(numbered(number))
            number += 1
    assert found == sent == list(range(4 * QUEUE_FRAMES))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_full_link_holds_up_the_frames_of_the_others_too() -> None:
    """A stage says that it has passed an iteration on only after it has."""
    next_stage, _far = pair()
    control, coordinator = pair()
    outbox: Outbox

    def sent(frame: Frame) -> None:
        if frame.kind is Kind.ITERATION:
            outbox.put(numbered(int.from_bytes(frame.header, "big"), Kind.PASSED))

    outbox = Outbox(lambda frame: next_stage if frame.kind is Kind.ITERATION else control, sent)
    running = asyncio.create_task(outbox.run())
    for number in range(QUEUE_FRAMES + 2):
        outbox.put(numbered(number))
    outbox.put(numbered(999, Kind.RESULT))
    await asyncio.sleep(0.01)
    assert await received(coordinator, QUEUE_FRAMES) == list(range(QUEUE_FRAMES))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            pytest.fail(f"{await coordinator.receive()} overtook")
    assert await received(_far, 2) == [0, 1]
    assert sorted(await received(coordinator, 3)) == [QUEUE_FRAMES, QUEUE_FRAMES + 1, 999]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_error_of_a_lost_link_comes_out_of_run_and_names_the_link() -> None:
    left, right = pair()
    other, _ = pair()
    outbox = Outbox(lambda frame: left if frame.kind is Kind.ITERATION else other, lambda frame: None)
    running = asyncio.create_task(outbox.run())
    outbox.put(numbered(1, Kind.RESULT))
    await right.close()
    outbox.put(numbered(2))
    with pytest.raises(RingError, match="is closed"):
        async with asyncio.timeout(5):
            await running
    assert outbox.link is left


class Threaded(InProcessLink):
    """Counts what goes past the loop; refuses it when told to."""

    refuses = False

    def send_from_thread(self, frame: Frame) -> bool:
        return not self.refuses and self.send_at_once(frame)


async def test_a_frame_from_the_other_thread_never_overtakes_one_that_had_to_wait() -> None:
    left, right = pair()
    left.__class__ = Threaded
    assert isinstance(left, Threaded)
    outbox = Outbox(lambda frame: left, lambda frame: None)
    assert outbox.send_from_thread(numbered(0))
    left.refuses = True
    assert not outbox.send_from_thread(numbered(1))
    left.refuses = False
    assert not outbox.send_from_thread(numbered(2)), "1 is on its way to the loop"
    outbox.take(numbered(1))
    assert not outbox.send_from_thread(numbered(3)), "2 is on its way to the loop"
    outbox.take(numbered(2))
    outbox.take(numbered(3))
    assert outbox.send_from_thread(numbered(4))
    assert await received(right, 5) == [0, 1, 2, 3, 4]
