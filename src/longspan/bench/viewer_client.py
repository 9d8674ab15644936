"""People who have the dashboard open, in a process of its own.

It reads how many there shall be from standard input, an order a line, and writes how many frames those before have
got.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

import msgspec
import uvloop

_EVENT = b"data: "
FIRST_FRAME_SECONDS = 30.0


class ViewerOrder(msgspec.Struct, frozen=True):
    """From now on, so many viewers at this server."""

    host: str
    port: int
    viewers: int


class FramesSeen(msgspec.Struct, frozen=True):
    """Frames that the viewers until now have got, all together."""

    frames: int


class Viewers:
    """Open streams of the dashboard's frames. What comes is read, counted and dropped."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._frames = 0

    async def become(self, order: ViewerOrder) -> FramesSeen:
        """Close what is open, and open what is ordered; each has its first frame then.

        Raises RuntimeError when the server does not send one.
        """
        await self.close()
        seen = FramesSeen(self._frames)
        self._frames = 0
        first = [asyncio.Event() for _ in range(order.viewers)]
        self._tasks = [asyncio.create_task(self._watch(order, event)) for event in first]
        try:
            async with asyncio.timeout(FIRST_FRAME_SECONDS):
                for event in first:
                    await event.wait()
        except TimeoutError:
            raise RuntimeError("the dashboard sends no frames") from None
        return seen

    async def close(self) -> None:
        """End all streams."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _watch(self, order: ViewerOrder, first: asyncio.Event) -> None:
        reader, writer = await asyncio.open_connection(order.host, order.port)
        try:
            writer.write(b"GET /dashboard/events HTTP/1.1\r\nhost: x\r\n\r\n")
            while line := await reader.readline():
                if line.startswith(_EVENT):
                    self._frames += 1
                    first.set()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def _obey() -> None:
    decoder = msgspec.json.Decoder(ViewerOrder)
    viewers = Viewers()
    try:
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            seen = await viewers.become(decoder.decode(line))
            sys.stdout.buffer.write(msgspec.json.encode(seen) + b"\n")
            sys.stdout.buffer.flush()
    finally:
        await viewers.close()


if __name__ == "__main__":
    uvloop.run(_obey())
