"""A ring that was lost forms again, while the requests that it served wait."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

from longspan.errors import LongspanError, RingError, RingIncompleteError
from longspan.runtime.base import Capacity

FIRST_RETRY_SECONDS = 0.25
LAST_RETRY_SECONDS = 5.0
AGAIN_SECONDS = 0.2

log = logging.getLogger(__name__)


class Healing:
    """Tries until the ring is there again, or the engine stops.

    missing: sentences that say what keeps the engine from serving; empty when it serves.
    """

    def __init__(
        self,
        *,
        clear: Callable[[], Awaitable[None]],
        form: Callable[[], Awaitable[Capacity]],
        on_formed: Callable[[Capacity], None],
        on_given_up: Callable[[RingError], None],
        seconds: float,
    ) -> None:
        """clear: takes what is left of the lost ring away. form: makes a new one. on_given_up: requests have waited
        for so many `seconds`, and shall fail with this error."""
        self._clear = clear
        self._form = form
        self._on_formed = on_formed
        self._on_given_up = on_given_up
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None
        self._gave_up = False
        self._stopped = False
        self._next_try = 0.0
        self.missing: tuple[str, ...] = ("the ring has not formed yet",)

    @property
    def waiting(self) -> bool:
        """Whether the ring is forming again, and requests wait for it."""
        return self._task is not None and not self._task.done() and not self._gave_up

    @property
    def refusal(self) -> RingIncompleteError | None:
        """Why a request cannot even wait, if that is so; may be read from any thread."""
        missing = self.missing
        if not missing or self.waiting:
            return None
        return RingIncompleteError(missing[0], retry_after=max(1.0, self._next_try - time.monotonic()))

    async def first(self, *, patient: bool) -> Capacity:
        """Form the ring for the first time. patient: try until it is there; else the first RingError is raised."""
        wait = FIRST_RETRY_SECONDS
        while True:
            try:
                return await self._form()
            except RingError as problem:
                if not patient or self._stopped:
                    raise
                log.warning("the ring cannot form: %s", problem)
            await self._clear()
            wait = await self._pause(wait)

    def begin(self, error: RingError) -> None:
        """The ring was lost. Nothing happens when it is forming again already."""
        log.warning("%s", error)
        self.missing = (str(error),)
        if not self._stopped and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._heal(error))

    def complete(self) -> None:
        """The ring is there."""
        self.missing = ()

    async def stop(self) -> None:
        """Form nothing any more."""
        self._stopped = True
        while self._task is not None and not self._task.done():
            # More than once: `asyncio.gather` loses a cancellation that comes in the round in which one of its
            # parts has failed and another has not yet.
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=AGAIN_SECONDS)
        self.missing = ("the engine has stopped",)

    async def _heal(self, error: RingError) -> None:
        giving_up = asyncio.get_running_loop().call_later(self._seconds, self._give_up, error)
        wait = FIRST_RETRY_SECONDS
        try:
            while not self._stopped:
                try:
                    await self._clear()
                    capacity = await self._form()
                    break
                except Exception as problem:
                    # Also after what nobody expected, a full process table for one: the next try may do.
                    unexpected = not isinstance(problem, LongspanError)
                    self.missing = (f"{type(problem).__name__}: {problem}" if unexpected else str(problem),)
                    log.warning("the ring cannot form: %s", problem, exc_info=problem if unexpected else None)
                wait = await self._pause(wait)
            else:
                return
        finally:
            giving_up.cancel()
        self._gave_up = False
        self._on_formed(capacity)

    async def _pause(self, wait: float) -> float:
        """Wait until the next try; how long to wait after that one."""
        seconds = random.uniform(wait / 2, wait)
        self._next_try = time.monotonic() + seconds
        await asyncio.sleep(seconds)
        return min(2 * wait, LAST_RETRY_SECONDS)

    def _give_up(self, error: RingError) -> None:
        """Requests have waited for the ring long enough. It goes on trying to form."""
        self._gave_up = True
        newest = f"; newest try: {self.missing[0]}" if self.missing and self.missing[0] != str(error) else ""
        text = f"{error}. It was not back within {self._seconds:g} s{newest}. The ring forms again when it is."
        self._on_given_up(RingIncompleteError(text, retry_after=max(1.0, self._next_try - time.monotonic())))
