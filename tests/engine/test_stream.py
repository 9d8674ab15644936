"""How pieces reach the one who asked: one by one, or together at the end."""

from __future__ import annotations

import asyncio

import pytest

from longspan.engine.stream import RequestStream, deliver
from longspan.errors import RingError
from longspan.request import Piece


def _stream(*, whole: bool) -> RequestStream:
    return RequestStream(lambda stream: None, whole=whole)


def _piece(text: str, finish_reason: str | None = None) -> Piece:
    return Piece(text, (1,), finish_reason=finish_reason)


async def _handed_over() -> None:
    """What was scheduled on this loop before has run."""
    for _ in range(2):
        await asyncio.sleep(0)


async def test_pieces_come_one_by_one() -> None:
    stream = _stream(whole=False)
    deliver([(stream, _piece("a"))])
    assert await asyncio.wait_for(anext(stream), 1) == _piece("a")


async def test_pieces_of_a_whole_answer_come_together_at_its_end() -> None:
    streamed, whole = _stream(whole=False), _stream(whole=True)
    pieces = [_piece("a"), _piece("b"), _piece("c", "stop")]
    reader = asyncio.create_task(anext(whole))
    for piece in pieces[:-1]:
        deliver([(streamed, piece), (whole, piece)])
    await _handed_over()
    assert not reader.done()
    deliver([(whole, pieces[-1])])
    assert [await asyncio.wait_for(reader, 1), *[piece async for piece in whole]] == pieces


async def test_an_error_ends_a_whole_answer_after_its_pieces() -> None:
    stream = _stream(whole=True)
    deliver([(stream, _piece("a"))])
    deliver([(stream, RingError("lost"))])
    assert await anext(stream) == _piece("a")
    with pytest.raises(RingError, match="lost"):
        await anext(stream)
