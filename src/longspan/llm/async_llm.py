"""A model for programs with an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Self, Unpack

from longspan.engine import Engine, EngineOptions, ServedModel
from longspan.errors import LongspanError
from longspan.llm.answer import Answer, whole_answer
from longspan.llm.batch import Result, run_batch
from longspan.llm.keywords import EngineKeywords, SamplingKeywords, generation_request
from longspan.llm.prompts import Messages, Prompt, chat_tokens, prompt_tokens
from longspan.openmp import set_waiting
from longspan.request import GenerationRequest, Piece

DEFAULT_MAX_TOKENS = 64
"""Of a plain prompt; a chat may fill the context."""


class AsyncLLM:
    """A running model: `async with AsyncLLM("demo", stages=2) as llm`, or `start` and `stop`.

    model: `demo`, a .gguf file, a layer package, or hf://OWNER/REPOSITORY/FILE.gguf; fetched if it is not here yet.
    on_progress: gets lines about starting. Everything else: how to run it, see `EngineKeywords`.

    Every method raises a LongspanError that says what was wrong: RequestError (with `param`) for what cannot be
    honoured, ContextLengthError, QueueFullError, RingError.
    """

    def __init__(
        self,
        model: str = "demo",
        *,
        on_progress: Callable[[str], None] | None = None,
        **options: Unpack[EngineKeywords],
    ) -> None:
        self._options = EngineOptions(model, **options)
        set_waiting(stages_here=self._options.stages)
        self.engine = Engine(self._options, on_progress=on_progress)

    @property
    def model(self) -> ServedModel:
        """What is served: id, context_length, tokenizer, chat_template. Raises RingError before the start."""
        return self.engine.model

    async def start(self) -> None:
        """Fetch the model, start its stages. Raises LongspanError with nothing left running."""
        await self.engine.start()

    async def stop(self) -> None:
        """End every request and every stage. Calling it twice is allowed."""
        await self.engine.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

    async def chat(self, messages: Messages, **sampling: Unpack[SamplingKeywords]) -> Answer:
        """Answer a conversation, or a question."""
        return await whole_answer(self.engine.submit(await self._chat_request(messages, sampling)))

    async def stream(self, messages: Messages, **sampling: Unpack[SamplingKeywords]) -> AsyncGenerator[Piece, None]:
        """The same answer in pieces, as their tokens are committed. Closing the generator cancels the rest."""
        request = await self._chat_request(messages, sampling)
        async for piece in self._pieces(request):
            yield piece

    async def stream_text(
        self, prompt: Prompt, **sampling: Unpack[SamplingKeywords]
    ) -> AsyncGenerator[Piece, None]:
        """What follows a plain prompt, in pieces."""
        request = await asyncio.to_thread(self._text_request, prompt, sampling)
        async for piece in self._pieces(request):
            yield piece

    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        on_answer: Callable[[int, Answer], None] | None = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> list[Answer]:
        """What follows each of the prompts, in their order; they run side by side.

        prompts: texts or lists of token ids; one of them is a batch of one. on_answer: is told each answer with the
        number of its prompt as soon as it is there. Every prompt is checked before the first one runs; an error
        while they run is raised when all have ended.
        """
        requests = [await asyncio.to_thread(self._text_request, prompt, sampling) for prompt in _listed(prompts)]
        answers: dict[int, Answer] = {}
        errors: list[LongspanError] = []

        def take(number: int, result: Result) -> None:
            if isinstance(result, LongspanError):
                errors.append(result)
                return
            answers[number] = result
            if on_answer is not None:
                on_answer(number, result)

        await run_batch(self.engine, enumerate(requests), self._options.slots, take)
        if errors:
            raise errors[0]
        return [answers[number] for number in range(len(requests))]

    async def _chat_request(self, messages: Messages, sampling: SamplingKeywords) -> GenerationRequest:
        def make() -> GenerationRequest:
            return generation_request(self.model, chat_tokens(self.model, messages), sampling, None)

        return await asyncio.to_thread(make)

    def _text_request(self, prompt: Prompt, sampling: SamplingKeywords) -> GenerationRequest:
        return generation_request(self.model, prompt_tokens(self.model, prompt), sampling, DEFAULT_MAX_TOKENS)

    async def _pieces(self, request: GenerationRequest) -> AsyncGenerator[Piece, None]:
        stream = self.engine.submit(request)
        try:
            async for piece in stream:
                yield piece
        finally:
            stream.cancel()


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt is a batch of one."""
    if isinstance(prompts, str):
        return [prompts]
    numbers = [item for item in prompts if isinstance(item, int)]
    if numbers and len(numbers) == len(prompts):
        return [numbers]
    return [item for item in prompts if not isinstance(item, int)]
