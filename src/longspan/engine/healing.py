"""A ring that was lost forms again, while the requests that it served wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from longspan.errors import LongspanError, RingError
from longspan.runtime.base import Capacity

FIRST_RETRY_SECONDS = 0.25
LAST_RETRY_SECONDS = 5.0

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
        for so many `seconds`, and shall fail with the reason for which the ring was lost."""
        self._clear = clear
        self._form = form
        self._on_formed = on_formed
        self._on_given_up = on_given_up
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None
        self._gave_up = False
        self.missing: tuple[str, ...] = ("the ring has not formed yet",)

    @property
    def waiting(self) -> bool:
        """Whether the ring is forming again, and requests wait for it."""
        return self._task is not None and not self._task.done() and not self._gave_up

    def begin(self, error: RingError) -> None:
        """The ring was lost. Nothing happens when it is forming again already."""
        log.warning("%s", error)
        self.missing = (str(error),)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._heal(error))

    def complete(self) -> None:
        """The ring is there."""
        self.missing = ()

    async def stop(self) -> None:
        """Form nothing any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.missing = ("the engine has stopped",)

    async def _heal(self, error: RingError) -> None:
        giving_up = asyncio.get_running_loop().call_later(self._seconds, self._give_up, error)
        wait = FIRST_RETRY_SECONDS
        try:
            while True:
                await self._clear()
                try:
                    capacity = await self._form()
                    break
                except Exception as problem:
                    # Also after what nobody expected, a full process table for one: the next try may do.
                    unexpected = not isinstance(problem, LongspanError)
                    self.missing = (f"{type(problem).__name__}: {problem}" if unexpected else str(problem),)
                    log.warning("the ring cannot form: %s", problem, exc_info=problem if unexpected else None)
                await asyncio.sleep(wait)
                wait = min(2 * wait, LAST_RETRY_SECONDS)
        finally:
            giving_up.cancel()
        self._gave_up = False
        self._on_formed(capacity)

    def _give_up(self, error: RingError) -> None:
        """Requests have waited for the ring long enough. It goes on trying to form."""
        self._gave_up = True
        self._on_given_up(error)
