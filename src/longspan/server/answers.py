"""The answers of one HTTP request: one engine stream for each choice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Self

import msgspec

from longspan.errors import RingError
from longspan.request import GenerationRequest, Piece, Timings
from longspan.server.contract import AnswerStream, ServingEngine
from longspan.server.metrics import RequestMetrics

_AHEAD = 8
"""Pieces of each choice that wait here for the client; the rest waits in the engine's own stream."""


class Answers:
    """Submits the requests and gives their pieces as they come, each with the index of its choice.

    A context manager: leaving it cancels what is not finished, whatever the reason.
    Raises what `submit` raises; then nothing stays submitted.
    """

    def __init__(
        self,
        engine: ServingEngine,
        requests: Sequence[GenerationRequest],
        metrics: RequestMetrics,
        *,
        whole: bool,
    ) -> None:
        """whole: the client waits for the end, so nobody is woken up for each piece."""
        self._metrics = metrics
        self._streams: list[AnswerStream] = []
        self._pumps: list[asyncio.Task[None]] = []
        self._newest: list[float | None] = [None] * len(requests)
        self._finished: set[int] = set()
        try:
            for request in requests:
                self._streams.append(engine.submit(msgspec.structs.replace(request, whole=whole)))
        except BaseException:
            for stream in self._streams:
                stream.cancel()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pump in self._pumps:
            pump.cancel()
        for index, stream in enumerate(self._streams):
            if index not in self._finished:
                stream.cancel()
                self._metrics.ended("cancelled", None)

    def timings(self, index: int) -> Timings | None:
        """Figures of a finished choice."""
        return self._streams[index].timings

    async def pieces(self) -> AsyncGenerator[tuple[int, Piece], None]:
        """(choice, piece) until every choice is finished. Raises the first LongspanError that ends a choice."""
        if len(self._streams) == 1:
            async for piece in self._streams[0]:
                self._note(0, piece)
                yield 0, piece
            self._check_finished(0)
            return
        queue: asyncio.Queue[tuple[int, Piece | Exception | None]] = asyncio.Queue(_AHEAD * len(self._streams))
        self._pumps = [asyncio.create_task(self._pump(index, queue)) for index in range(len(self._streams))]
        running = len(self._pumps)
        while running:
            index, item = await queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield index, item

    async def _pump(self, index: int, queue: asyncio.Queue[tuple[int, Piece | Exception | None]]) -> None:
        try:
            async for piece in self._streams[index]:
                self._note(index, piece)
                await queue.put((index, piece))
            self._check_finished(index)
        except Exception as error:
            await queue.put((index, error))
        else:
            await queue.put((index, None))

    def _note(self, index: int, piece: Piece) -> None:
        """Count a piece in the metrics. Raises RingError when the engine gave the request up."""
        # The end of an answer may come as a piece of its own, without tokens.
        if piece.tokens:
            last, self._newest[index] = self._newest[index], piece.at
            if last is not None:
                self._metrics.gap(piece.at - last)
        if piece.finish_reason == "cancelled":
            raise RingError("The request was cancelled inside the server.")
        if piece.finish_reason is not None:
            self._finished.add(index)
            self._metrics.ended(piece.finish_reason, self._streams[index].timings)

    def _check_finished(self, index: int) -> None:
        if index not in self._finished:
            raise RingError("The answer broke off inside the server.")
