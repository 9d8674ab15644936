"""A model for programs that wait."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from typing import Any, Self, TypeVar, Unpack

from longspan.engine import ServedModel
from longspan.errors import RingError
from longspan.llm.answer import Answer
from longspan.llm.async_llm import AsyncLLM
from longspan.llm.keywords import EngineKeywords, SamplingKeywords
from longspan.llm.prompts import Messages, Prompt
from longspan.request import Piece

_T = TypeVar("_T")


class LLM:
    """A running model: `LLM("demo", stages=2).chat("What is a river?").text`.

    Starts when it is made and stops at `close`, at the end of a `with` block, or with the program. Arguments and
    errors are those of `AsyncLLM`. Any thread may call it, several at once; not from a coroutine, which it would
    hold up: there is `AsyncLLM`.
    """

    def __init__(
        self,
        model: str = "demo",
        *,
        on_progress: Callable[[str], None] | None = None,
        **options: Unpack[EngineKeywords],
    ) -> None:
        self._llm = AsyncLLM(model, on_progress=on_progress, **options)
        self._loop = _BackgroundLoop()
        try:
            self._loop.run(self._llm.start())
        except BaseException:
            self._loop.close()
            raise
        # Not a method: it would keep this object alive.
        self._finalizer = weakref.finalize(self, _stop, self._loop, self._llm)

    @property
    def model(self) -> ServedModel:
        """What is served: id, context_length, tokenizer, chat_template."""
        return self._llm.model

    def close(self) -> None:
        """End every request and every stage. Calling it twice is allowed."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def chat(self, messages: Messages, **sampling: Unpack[SamplingKeywords]) -> Answer:
        """Answer a conversation, or a question."""
        return self._loop.run(self._llm.chat(messages, **sampling))

    def stream(self, messages: Messages, **sampling: Unpack[SamplingKeywords]) -> Iterator[Piece]:
        """The same answer in pieces, as their tokens are committed. Closing the iterator cancels the rest."""
        return self._iterate(self._llm.stream(messages, **sampling))

    def stream_text(self, prompt: Prompt, **sampling: Unpack[SamplingKeywords]) -> Iterator[Piece]:
        """What follows a plain prompt, in pieces."""
        return self._iterate(self._llm.stream_text(prompt, **sampling))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        on_answer: Callable[[int, Answer], None] | None = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> list[Answer]:
        """What follows each of the prompts, in their order; see `AsyncLLM.generate`."""
        return self._loop.run(self._llm.generate(prompts, on_answer=on_answer, **sampling))

    def _iterate(self, pieces: AsyncGenerator[Piece, None]) -> Iterator[Piece]:
        try:
            while True:
                try:
                    piece = self._loop.run(anext(pieces))
                except StopAsyncIteration:
                    return
                yield piece
        finally:
            self._loop.run(pieces.aclose())


class _BackgroundLoop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="longspan-llm", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Wait for a coroutine; it is cancelled when the caller is interrupted. Raises RingError after `close`."""
        if self._loop.is_closed():
            work.close()
            raise RingError("this LLM is closed; make another one.")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def close(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _stop(loop: _BackgroundLoop, llm: AsyncLLM) -> None:
    with contextlib.closing(loop):
        loop.run(llm.stop())
