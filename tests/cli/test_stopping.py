"""Programs that run until a signal."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from longspan.cli.stopping import STOP_SIGNALS, run_until_stopped
from longspan.errors import RingError


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_ends_the_work_and_its_cleaning_up_is_finished(number: signal.Signals) -> None:
    events: list[str] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(0.01, os.kill, os.getpid(), number)
        try:
            await asyncio.sleep(30)
        finally:
            # An impatient user signals again; what is being cleaned up is not disturbed.
            os.kill(os.getpid(), number)
            await asyncio.sleep(0.05)
            events.append("cleaned")

    run_until_stopped(work())
    assert events == ["cleaned"]


def test_an_error_of_the_work_comes_out() -> None:
    async def work() -> None:
        raise RingError("stage 1 is missing")

    with pytest.raises(RingError, match="stage 1 is missing"):
        run_until_stopped(work())


def test_work_that_ends_by_itself_ends() -> None:
    async def work() -> None:
        await asyncio.sleep(0)

    run_until_stopped(work())


def test_a_cancellation_that_no_signal_asked_for_is_not_a_good_end() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_until_stopped(work())
