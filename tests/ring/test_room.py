"""Places for iterations, given back from another thread."""

from __future__ import annotations

import asyncio
import threading

from longspan.ring.room import Room


async def test_a_place_is_taken_once_and_can_be_had_again() -> None:
    room = Room(2)
    assert [room.try_take() for _ in range(3)] == [True, True, False]
    assert room.give_back() == 1
    assert room.try_take()
    assert room.given_back == 1


async def test_who_waits_is_first_and_nobody_is_forgotten() -> None:
    room = Room(3)
    held = taken = 0
    most = 0

    async def hold() -> None:
        nonlocal held, most, taken
        await room.take()
        held += 1
        taken += 1
        most = max(most, held)

    waiting = [asyncio.create_task(hold()) for _ in range(100)]
    await asyncio.sleep(0)
    assert not room.try_take(), "others wait"

    def give_back() -> None:
        nonlocal held
        for _ in range(100):
            while not held:
                pass
            held -= 1
            room.give_back()

    thread = threading.Thread(target=give_back)
    thread.start()
    async with asyncio.timeout(10):
        await asyncio.gather(*waiting)
    await asyncio.to_thread(thread.join)
    assert taken == room.given_back == 100
    assert most <= 3
    assert room.try_take()


async def test_one_who_waits_no_more_leaves_the_place_to_others() -> None:
    room = Room(1)
    assert room.try_take()
    waiting = asyncio.create_task(room.take())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    room.give_back()
    assert room.try_take()
