"""Requests and what comes back."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable, Sequence

from longspan.engine import RequestStream
from longspan.request import GenerationRequest, Piece
from longspan.sampling.parameters import SamplingParameters


@dataclasses.dataclass
class Answer:
    """All pieces of one answer."""

    tokens: list[int] = dataclasses.field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    pieces: list[Piece] = dataclasses.field(default_factory=list)

    def take(self, piece: Piece) -> None:
        assert self.finish_reason is None, "a piece after the last one"
        self.pieces.append(piece)
        self.tokens += piece.tokens
        self.text += piece.text
        self.finish_reason = piece.finish_reason


async def whole(stream: RequestStream, seconds: float = 30.0) -> Answer:
    """Everything that comes until the end."""
    answer = Answer()
    async with asyncio.timeout(seconds):
        async for piece in stream:
            answer.take(piece)
    assert answer.finish_reason is not None
    return answer


async def first(stream: RequestStream, tokens: int, seconds: float = 30.0) -> Answer:
    """At least this many tokens of an answer."""
    answer = Answer()
    async with asyncio.timeout(seconds):
        while len(answer.tokens) < tokens:
            answer.take(await anext(stream))
    return answer


async def rest(answer: Answer, stream: RequestStream, seconds: float = 30.0) -> Answer:
    """The answer, completed."""
    async with asyncio.timeout(seconds):
        async for piece in stream:
            answer.take(piece)
    return answer


def request(
    prompt: Sequence[int], max_tokens: int = 16, *, ignore_eos: bool = True, **fields: object
) -> GenerationRequest:
    """A request whose answer is as long as asked: a script says end tokens as it says all others."""
    return GenerationRequest(tuple(prompt), max_tokens, ignore_eos=ignore_eos, **fields)  # type: ignore[arg-type]


def random_requests(count: int, *, longest: int, seed: int) -> list[GenerationRequest]:
    """Prompts and answers of every length; greedy, drawn with a seed, with penalties; some prompts begin alike."""
    generator = random.Random(seed)
    shared = [generator.randrange(3, 300) for _ in range(48)]
    made = []
    for index in range(count):
        head = shared[: generator.choice([0, 0, 0, 16, 32, 48])]
        prompt = head + [generator.randrange(3, 300) for _ in range(generator.randint(1, 60))]
        sampling = [
            SamplingParameters(),
            SamplingParameters(temperature=0.9, top_p=0.9),
            SamplingParameters(temperature=1.3, top_k=40, repetition_penalty=1.2, presence_penalty=0.3),
        ][index % 3]
        made.append(
            request(prompt, generator.randint(1, longest), sampling=sampling, seed=generator.getrandbits(64))
        )
    return made


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in another thread or process
            await asyncio.sleep(0.01)
