"""The small model that drafts beside the coordinator (`--proposer draft`), on a thread of its own.

Nobody waits for it. What proposers tell it goes into a queue; what it has thought comes back as calls on the
engine's loop, and then the planner is asked again. When it fails, drafts end, and nothing else happens.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import queue
import threading
from collections.abc import Callable

import numpy as np

from longspan.engine.options import EngineOptions
from longspan.model.embedding import TokenEmbedding
from longspan.model.reference import resolve
from longspan.model.source import ModelSource
from longspan.model.vocabulary import check_same_vocabulary
from longspan.ring.llama_loader import LlamaLoader
from longspan.ring.messages import Assignment
from longspan.runtime.base import StageRuntime
from longspan.schedule.span import IterationResult
from longspan.speculate.acceptance import SequenceBooks
from longspan.speculate.ahead import Ahead, Thought, Told
from longspan.speculate.run_ahead import RunAhead


class DraftRunner:
    """Only the engine's loop calls it."""

    def __init__(
        self,
        options: EngineOptions,
        target: ModelSource,
        threads: int,
        *,
        on_drafts: Callable[[], None],
        report: Callable[[str], None],
    ) -> None:
        """target: the model that is drafted for. on_drafts: is told on the loop that proposers have more."""
        self._options = options
        self._target = target
        self._threads = threads
        self._on_drafts = on_drafts
        self._report = report
        self._messages: queue.SimpleQueue[Told | None] = queue.SimpleQueue()
        self._proposers: dict[int, Ahead] = {}
        self._keys = itertools.count()
        self._source: ModelSource | None = None
        self._thinks = False
        self._thread: threading.Thread | None = None
        self._opened: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()

    async def find(self) -> None:
        """Get the model, and see whether it can draft for the other one. Raises ModelError."""
        assert self._options.draft_model is not None
        self._source = await asyncio.to_thread(resolve, self._options.draft_model)
        check_same_vocabulary(self._target, self._source)

    async def start(self, slots: int, cells: int) -> None:
        """Open the model with so many KV slots of so many positions. Raises LongspanError, with nothing left."""
        source = self._source
        assert source is not None
        self._report(f"opening the draft model {source.description.model_id}")
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=self._run, args=(loop, source, slots, cells), name="longspan-draft", daemon=True
        )
        for future in (self._opened, self._ended):
            future.set_running_or_notify_cancel()  # whoever stops waiting for the thread does not disturb it
        self._thread.start()
        try:
            await asyncio.wrap_future(self._opened)
        except BaseException:
            await self.close()
            raise
        self._thinks = True

    def proposer(self, books: SequenceBooks) -> Ahead:
        """The proposer of a new sequence; a `speculate.composite.ProposerMaker`."""
        key = next(self._keys)
        found = self._proposers[key] = Ahead(key, self._tell)
        return found

    async def close(self) -> None:
        """End the thread and release the model. Calling it twice is allowed."""
        self._thinks = False
        thread, self._thread = self._thread, None
        if thread is not None:
            self._messages.put(None)
            await asyncio.wrap_future(self._ended)
            thread.join()

    def _tell(self, told: Told) -> None:
        if told.ended:
            self._proposers.pop(told.key, None)
        if self._thinks:
            self._messages.put(told)

    def _deliver(self, thoughts: list[Thought]) -> None:
        for thought in thoughts:
            proposer = self._proposers.get(thought.key)
            if proposer is not None:
                proposer.think(thought)
        if self._thinks:
            self._on_drafts()

    def _give_up(self, reason: str) -> None:
        self._thinks = False
        self._report(f"the draft model has stopped, answers go on without its drafts: {reason}")

    # ------------------------------------------------------------------------------------- on the model's thread

    def _run(self, loop: asyncio.AbstractEventLoop, source: ModelSource, slots: int, cells: int) -> None:
        try:
            try:
                description = source.description
                layers, most = description.layers, min(cells, description.context_length)
                assignment = Assignment(0, 1, 0, layers, layers, None, slots, most, "float32")
                library = self._options.library
                loader = LlamaLoader(source, threads=self._threads, library=library, mtp_head=False)
                embedding = source.token_embedding(library)
                runtime = loader.load(assignment, lambda text: None)
            except BaseException as error:
                self._opened.set_exception(error)
                return
            try:
                self._opened.set_result(None)
                self._think(loop, runtime, embedding)
            except Exception as error:  # whatever it is: the engine serves without drafts
                loop.call_soon_threadsafe(self._give_up, f"{type(error).__name__}: {error}")
            finally:
                runtime.close()
        finally:
            self._ended.set_result(None)

    def _think(self, loop: asyncio.AbstractEventLoop, runtime: StageRuntime, embedding: TokenEmbedding) -> None:
        capacity = runtime.capacity()
        ahead = RunAhead(capacity.slots, capacity.cells_per_slot, capacity.max_rows, embedding.vocabulary)
        idle = True
        while self._listen(ahead, wait=idle):
            iteration = ahead.plan()
            idle = iteration is None
            if iteration is None:
                continue
            tokens = np.array(iteration.tokens, np.int32)
            output = runtime.run(iteration, embedding.rows(tokens))
            result = IterationResult(iteration.id, output.samples, output.failures)
            thoughts = ahead.complete(iteration, result)
            if thoughts:
                loop.call_soon_threadsafe(self._deliver, thoughts)

    def _listen(self, ahead: RunAhead, *, wait: bool) -> bool:
        """Take the messages that are there, with `wait` at least one; False when it is over."""
        while True:
            try:
                told = self._messages.get(block=wait)
            except queue.Empty:
                return True
            if told is None:
                return False
            ahead.take(told)
            wait = False
