"""Programs that run until they are told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine

import uvloop

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_until_stopped(work: Coroutine[object, object, None]) -> None:
    """Run a coroutine; SIGINT (Ctrl-C) and SIGTERM cancel it, and that is a good end.

    The coroutine cleans up in its `finally` blocks. What it raises by itself is raised here.
    """

    async def watched() -> None:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        stopped = False

        def stop() -> None:
            nonlocal stopped
            # A second signal while cleaning up changes nothing: the first one is still being obeyed.
            if not stopped:
                stopped = True
                task.cancel()

        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, stop)
        try:
            await work
        except asyncio.CancelledError:
            if not stopped:
                raise
        finally:
            for number in STOP_SIGNALS:
                loop.remove_signal_handler(number)

    with contextlib.closing(work):
        uvloop.run(watched())
