"""Frames on their way out: written at once while no link is full, else in order by a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from longspan.ring.frame import Frame
from longspan.ring.link import Link


class Outbox:
    """Keeps the order of frames over all links that it feeds.

    route: the link of a frame. sent: called after each frame, on the loop. A wake-up of a task costs more than a
    small frame's way through the kernel, so the task is only for links that make the sender wait.
    link: the one that `run` sent to last, to which its error belongs.
    """

    def __init__(self, route: Callable[[Frame], Link], sent: Callable[[Frame], None]) -> None:
        self._route = route
        self._sent = sent
        self._waiting: asyncio.Queue[Frame] = asyncio.Queue()
        self._sending = False
        self._handed = 0
        self._taken = 0
        self.link: Link | None = None

    def put(self, frame: Frame) -> None:
        """Send after everything put before; never waits. Errors of the link come out of `run`."""
        if not self._sending and self._waiting.empty() and self._route(frame).send_at_once(frame):
            self._sent(frame)
        else:
            self._waiting.put_nowait(frame)

    def send_from_thread(self, frame: Frame) -> bool:
        """Send now, on the one other thread that makes frames, if nothing is before it.

        The wake-up of the loop is then no part of the frame's way. After False the loop must `take` the frame.
        """
        free = self._handed == self._taken and not self._sending and self._waiting.empty()
        if free and self._route(frame).send_from_thread(frame):
            return True
        self._handed += 1
        return False

    def take(self, frame: Frame) -> None:
        """Put a frame that could not be sent from its thread."""
        self._taken += 1
        self.put(frame)

    async def run(self) -> None:
        """Send what could not be sent at once, until cancelled. Raises what `Link.send` and `sent` raise."""
        while True:
            frame = await self._waiting.get()
            self._sending = True
            try:
                self.link = self._route(frame)
                await self.link.send(frame)
            finally:
                self._sending = False
            self._sent(frame)
