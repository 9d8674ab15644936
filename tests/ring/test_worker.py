from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from longspan.ring.worker import TOLD, Worker


async def test_runs_in_order_on_one_other_thread_and_answers_on_the_loop() -> None:
    worker = Worker("test")
    order: list[int] = []
    threads: set[int] = set()
    answered: list[int] = []
    done = asyncio.Event()

    def work(number: int) -> int:
        threads.add(threading.get_ident())
        time.sleep(0.001 * (number % 3))
        order.append(number)
        return number

    def finished(result: Any, error: BaseException | None) -> None:
        assert error is None
        assert threading.current_thread() is threading.main_thread()
        answered.append(result)
        if result == 19:
            done.set()

    for number in range(20):
        worker.submit(lambda number=number: work(number), finished)  # type: ignore[misc]
    await asyncio.wait_for(done.wait(), 5)
    await worker.stop()
    assert order == answered == list(range(20))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_an_exception_reaches_who_asked_and_the_thread_goes_on() -> None:
    worker = Worker("test")

    def fail() -> None:
        raise ZeroDivisionError("by design")

    with pytest.raises(ZeroDivisionError, match="by design"):
        await worker.call(fail)
    assert await worker.call(lambda: 5) == 5
    await worker.stop()


async def test_stopping_lets_what_was_given_finish() -> None:
    worker = Worker("test")
    done: list[int] = []

    def work(number: int) -> None:
        time.sleep(0.01)
        done.append(number)

    for number in range(5):
        worker.submit(lambda number=number: work(number), lambda result, error: None)  # type: ignore[misc]
    await worker.stop()
    assert done == list(range(5))


async def test_who_does_not_wait_any_more_is_left_alone() -> None:
    worker = Worker("test")
    release = threading.Event()
    waiting = asyncio.create_task(worker.call(release.wait))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    release.set()
    assert await worker.call(lambda: "next") == "next"
    await worker.stop()


def test_a_loop_that_is_gone_ends_the_thread() -> None:
    async def leave() -> Worker:
        worker = Worker("test")
        worker.submit(lambda: time.sleep(0.05), lambda result, error: None)
        return worker

    worker = asyncio.run(leave())
    worker._thread.join(2)
    assert not worker._thread.is_alive()


async def test_a_function_that_has_told_already_wakes_nobody() -> None:
    worker = Worker("test")
    found: list[object] = []
    worker.submit(lambda: TOLD, lambda result, error: found.append(result))
    worker.submit(lambda: 1, lambda result, error: found.append(result))
    await worker.stop()
    await asyncio.sleep(0)
    assert found == [1]
