"""The thread that owns a runtime."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

SWITCH_SECONDS = 0.0002
"""How long one Python thread may keep the interpreter from another. A runtime's thread comes back into Python for
every graph node's callback, and must not wait there for the thread that serves the links."""


TOLD: Final = object()
"""Result of a function that needs no `done`: it has told everybody already, and the loop sleeps on."""


class Worker:
    """Runs functions one after the other on a thread of its own, in the order in which they were given.

    Results come back on the event loop that made the worker. A plain queue and one wake-up of the loop for each
    result keep the way from frame to compute and back short.
    """

    def __init__(self, name: str) -> None:
        sys.setswitchinterval(SWITCH_SECONDS)
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]] | None]
        self._queue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Run `function` on the worker's thread, then `done(result, error)` on the loop, unless it was `TOLD`."""
        self._queue.put((function, done))

    async def call(self, function: Callable[[], Any]) -> Any:
        """Run `function` after everything submitted before; its result or its exception."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def done(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.submit(function, done)
        return await future

    async def stop(self) -> None:
        """Let what was submitted finish, then end the thread."""
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            function, done = entry
            try:
                result, error = function(), None
            except BaseException as raised:
                result, error = None, raised
            if result is TOLD:
                continue
            try:
                self._loop.call_soon_threadsafe(done, result, error)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more
