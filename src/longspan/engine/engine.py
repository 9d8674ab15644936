"""The public face of a running model."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import secrets
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec
import uvloop

from longspan.engine.core import EngineCore
from longspan.engine.options import EngineOptions
from longspan.engine.stream import RequestStream
from longspan.errors import ContextLengthError, QueueFullError, RequestError, RingError
from longspan.llamacpp.library import load_library
from longspan.model.chat_template import ChatTemplate
from longspan.model.description import ModelDescription
from longspan.model.grammar import GrammarVocabulary
from longspan.model.reference import resolve
from longspan.model.source import ModelSource
from longspan.model.tokenizer import Tokenizer
from longspan.request import GenerationRequest
from longspan.sampling.limits import check
from longspan.status import EngineActivity, EngineStatistics, Readiness, RingStatus

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class ServedModel:
    """The model that an engine serves.

    id: what requests call it. root: the reference it came from. created: Unix seconds when serving began.
    context_length: positions of a slot, prompt and answer together. grammars: checks what an answer shall follow.
    """

    id: str
    root: str
    created: int
    context_length: int
    description: ModelDescription
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    grammars: GrammarVocabulary


class Engine:
    """Serves one model over a ring.

    `submit`, `ring`, `readiness` and `statistics` may be called from any thread.
    """

    def __init__(self, options: EngineOptions, *, on_progress: Callable[[str], None] | None = None) -> None:
        self._options = options
        self._report = on_progress or (lambda text: None)
        self._core: EngineCore | None = None
        self._source: ModelSource | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._model: ServedModel | None = None
        self._most_outstanding = 0
        self._longest = 0

    @property
    def model(self) -> ServedModel:
        """The served model. Raises RingError before `start` has finished."""
        if self._model is None:
            raise RingError("the engine has not started yet")
        return self._model

    async def start(self) -> None:
        """Resolve the model, start its stages, form the ring. Raises LongspanError with nothing left running."""
        try:
            self._source = await asyncio.to_thread(resolve, self._options.model)
            tokenizer = await asyncio.to_thread(self._open_tokenizer, self._source)
            self._start_thread()
            self._core = await self._call(self._make_core(self._source, tokenizer))
            capacity = await self._call(self._core.start())
        except BaseException:
            await self.stop()
            raise
        self._longest = capacity.cells_per_slot
        self._most_outstanding = capacity.slots + self._options.max_waiting
        description = self._source.description
        self._model = ServedModel(
            description.model_id,
            self._options.model,
            int(time.time()),
            capacity.cells_per_slot,
            description,
            tokenizer,
            _chat_template(self._source, tokenizer),
            GrammarVocabulary(tokenizer),
        )

    async def stop(self) -> None:
        """End every request, the ring and the local stages. Calling it twice is allowed."""
        core, self._core = self._core, None
        try:
            if core is not None:
                await self._call(core.stop())
        finally:
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
            if loop is not None and thread is not None:
                loop.call_soon_threadsafe(loop.stop)
                # Not joined on another thread: at the interpreter's end none can be started any more.
                await asyncio.wrap_future(self._ended)
                thread.join()

    def submit(self, request: GenerationRequest) -> RequestStream:
        """Start a request; its stream belongs to the running event loop.

        Raises ContextLengthError, QueueFullError, RequestError or RingError at once.
        """
        core, loop = self._core, self._loop
        if core is None or loop is None:
            raise RingError("the engine is not running")
        if (refusal := core.refusal) is not None:
            raise refusal
        self._check(request)
        if len(request.prompt) + 1 > self._longest:
            raise ContextLengthError(
                f"the prompt has {len(request.prompt)} tokens, and a slot holds {self._longest} positions for "
                "prompt and answer together. Shorten the prompt, or serve with a larger --context."
            )
        if core.outstanding >= self._most_outstanding:
            raise QueueFullError(
                f"{core.outstanding} requests run or wait already, which is the most; try again later",
                retry_after=1.0,
            )
        if request.seed is None:
            request = msgspec.structs.replace(request, seed=secrets.randbits(64))
        stream = RequestStream(self._cancel, whole=request.whole)
        loop.call_soon_threadsafe(core.submit, request, stream)
        return stream

    def _check(self, request: GenerationRequest) -> None:
        """Refuse what would fail on a stage, where it would take the ring with it."""
        vocabulary = self.model.description.vocabulary
        check(request.sampling, vocabulary)
        if request.sampling.grammar:
            self.model.grammars.check(request.sampling.grammar, "grammar")
        for name in ("prompt", "stop_token_ids"):
            for token in getattr(request, name):
                if not 0 <= token < vocabulary:
                    raise RequestError(
                        f"{name} holds the token {token}, but the model has tokens 0 to {vocabulary - 1}",
                        param=name,
                    )

    def ring(self) -> RingStatus:
        """The ring as it is now."""
        if self._core is None or self._source is None:
            raise RingError("the engine is not running")
        description = self._source.description
        return RingStatus(
            description.model_id,
            self._source.digest,
            self._core.epoch,
            description.layers,
            self._core.stages(),
            self._options.link_delay_ms,
            self._core.members(),
        )

    async def remove_stage(self, name: str) -> None:
        """Send a stage that has joined away for good; a spare takes its place.

        May be called from any event loop. Raises UnknownStageError, RingError.
        """
        if self._core is None:
            raise RingError("the engine is not running")
        await self._call(self._core.remove_stage(name))

    def readiness(self) -> Readiness:
        """Whether requests can be served, and if not, what is missing."""
        missing = self._core.missing if self._core is not None else ("the engine is not running",)
        return Readiness(not missing, missing)

    def statistics(self) -> EngineStatistics:
        """Figures since the engine started."""
        return self._ask(lambda core: core.statistics())

    def activity(self, moment: float) -> EngineActivity:
        """What goes on now, with the iterations that completed after `moment` of an earlier activity's clock."""
        return self._ask(lambda core: core.activity(moment))

    def _ask(self, question: Callable[[EngineCore], _T]) -> _T:
        """What the engine's thread says. Raises RingError when it does not run."""
        core, loop = self._core, self._loop
        if core is None or loop is None:
            raise RingError("the engine is not running")
        answer: concurrent.futures.Future[_T] = concurrent.futures.Future()

        def ask() -> None:
            try:
                answer.set_result(question(core))
            except BaseException as error:
                answer.set_exception(error)

        loop.call_soon_threadsafe(ask)
        return answer.result(timeout=10.0)

    def _cancel(self, stream: RequestStream) -> None:
        core, loop = self._core, self._loop
        if core is not None and loop is not None:
            loop.call_soon_threadsafe(core.cancel, stream)

    async def _make_core(self, source: ModelSource, tokenizer: Tokenizer) -> EngineCore:
        return EngineCore(self._options, source, tokenizer, self._report)

    def _open_tokenizer(self, source: ModelSource) -> Tokenizer:
        return Tokenizer(source.vocabulary_file(), library=load_library(self._options.library))

    def _start_thread(self) -> None:
        loop = uvloop.new_event_loop()
        ended: concurrent.futures.Future[None] = concurrent.futures.Future()

        def run() -> None:
            asyncio.set_event_loop(loop)
            try:
                loop.run_forever()
            finally:
                loop.run_until_complete(loop.shutdown_asyncgens())
                loop.close()
                ended.set_result(None)

        self._loop = loop
        self._ended = ended
        self._thread = threading.Thread(target=run, name="longspan-engine", daemon=True)
        self._thread.start()

    async def _call(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        assert self._loop is not None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))


def _chat_template(source: ModelSource, tokenizer: Tokenizer) -> ChatTemplate | None:
    if source.chat_template is None:
        return None
    bos = tokenizer.piece(tokenizer.bos).decode("utf-8", "replace") if tokenizer.bos is not None else ""
    eos = tokenizer.piece(tokenizer.eos).decode("utf-8", "replace") if tokenizer.eos is not None else ""
    return ChatTemplate(source.chat_template, bos, eos)
