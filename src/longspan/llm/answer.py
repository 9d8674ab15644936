"""What comes back."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from longspan.engine import RequestStream
from longspan.request import Piece, Timings
from longspan.schedule.span import TokenLogprob


class Answer(msgspec.Struct, frozen=True):
    """One whole answer.

    text: without end tokens and stop strings. tokens: every generated token id, the end token included.
    finish_reason: "stop" or "length". logprobs: parallel to `tokens` when they were asked for, else empty.
    prompt_logprobs: of each token of the prompt but the first, when they were asked for.
    timings: seconds, measured in the engine.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    timings: Timings
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


def answer_of(pieces: Sequence[Piece], timings: Timings) -> Answer:
    """The answer that the pieces of a finished stream make."""
    return Answer(
        "".join(piece.text for piece in pieces),
        tuple(token for piece in pieces for token in piece.tokens),
        pieces[-1].finish_reason or "",
        timings,
        tuple(entry for piece in pieces for entry in piece.logprobs),
        tuple(entry for piece in pieces for entry in piece.prompt_logprobs),
    )


async def whole_answer(stream: RequestStream) -> Answer:
    """Wait for the end of a stream; leaving early cancels it. Raises the LongspanError that ended it."""
    try:
        pieces = [piece async for piece in stream]
    except BaseException:
        stream.cancel()
        raise
    assert stream.timings is not None
    return answer_of(pieces, stream.timings)
