"""How an answer reaches the one who asked, on his own event loop."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable

from longspan.errors import LongspanError
from longspan.request import Piece, Timings

Delivery = list["tuple[RequestStream, Piece | LongspanError]"]
_Handover = list["tuple[RequestStream, list[Piece | LongspanError]]"]


class RequestStream:
    """The pieces of one answer: `async for piece in stream`.

    The iteration ends after the piece with a `finish_reason`, or raises the LongspanError that ended the answer.
    timings: set once the answer has ended. What waits here is bounded by the answer's own length.
    """

    def __init__(self, cancel: Callable[[RequestStream], None], *, whole: bool = False) -> None:
        """whole: all pieces are handed over with the last one."""
        self.loop = asyncio.get_running_loop()
        self.timings: Timings | None = None
        self._cancel = cancel
        self._held: list[Piece | LongspanError] | None = [] if whole else None
        self._waiting: collections.deque[Piece | LongspanError] = collections.deque()
        self._arrived = asyncio.Event()
        self._ended = False

    def cancel(self) -> None:
        """Stop generating. From any thread; calling it twice, or after the end, is allowed."""
        self._cancel(self)

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> Piece:
        if self._ended and not self._waiting:
            raise StopAsyncIteration
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        item = self._waiting.popleft()
        if isinstance(item, LongspanError):
            self._ended = True
            raise item
        if item.finish_reason is not None:
            self._ended = True
        return item

    def due(self, item: Piece | LongspanError) -> list[Piece | LongspanError]:
        """What is to be handed over now that `item` is there; called by whoever makes the pieces."""
        if self._held is None:
            return [item]
        self._held.append(item)
        if isinstance(item, Piece) and item.finish_reason is None:
            return []
        held, self._held = self._held, []
        return held

    def take(self, items: list[Piece | LongspanError]) -> None:
        """Accept the next pieces; called on the stream's loop."""
        self._waiting += items
        self._arrived.set()


def deliver(batch: Delivery) -> None:
    """Hand a batch over to the loops that its streams belong to, with one wake-up a loop."""
    by_loop: dict[asyncio.AbstractEventLoop, _Handover] = {}
    for stream, item in batch:
        if items := stream.due(item):
            by_loop.setdefault(stream.loop, []).append((stream, items))
    for loop, handover in by_loop.items():
        try:
            loop.call_soon_threadsafe(_take_all, handover)
        except RuntimeError:
            continue  # that loop is closed: nobody reads these streams any more


def _take_all(handover: _Handover) -> None:
    for stream, items in handover:
        stream.take(items)
