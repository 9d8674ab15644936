"""Records a trace of the real engine under a contended, ragged load, for the cost models to be judged on."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

from longspan.bench.prompts import prompt_of_length
from longspan.bench.timeline import follow
from longspan.engine import Engine, EngineOptions
from longspan.request import GenerationRequest

LIVE = 6
"""Requests that run at the same time."""

_DOCUMENTS = 2
_SHORT = (16, 400)
_ANSWER = (16, 96)


class CostRecording:
    """The load: documents of `history` tokens, prefilled once; then requests that go on from a prefix of one, of
    any length, or that are short and new. Long histories come from the prefix cache, so that minutes suffice.
    """

    def __init__(
        self, model: str, *, stages: int, seconds: float, history: int, threads: int | None, seed: int = 1
    ) -> None:
        self._model = model
        self._stages = stages
        self._seconds = seconds
        self._history = history
        self._threads = threads
        self._random = random.Random(seed)

    def record(self, path: Path, report: Callable[[str], None]) -> None:
        """Write the trace to `path`. Raises LongspanError when the engine cannot start."""
        asyncio.run(self._record(path, report))

    async def _record(self, path: Path, report: Callable[[str], None]) -> None:
        engine = Engine(
            EngineOptions(
                self._model,
                stages=self._stages,
                threads=self._threads,
                context=self._history + _SHORT[1] + _ANSWER[1] + 8,
                slots=LIVE + _DOCUMENTS,
                proposer="none",
                trace=str(path),
            )
        )
        report("loading the model")
        await engine.start()
        try:
            vocabulary = engine.model.description.vocabulary
            documents = [prompt_of_length(vocabulary, self._history, seed) for seed in range(_DOCUMENTS)]
            for number, document in enumerate(documents):
                report(f"reading document {number + 1} of {_DOCUMENTS}, {self._history} tokens")
                await follow(engine.submit(GenerationRequest(document, 1, ignore_eos=True, seed=0)))
            end = time.perf_counter() + self._seconds
            await asyncio.gather(*(self._client(engine, vocabulary, documents, end, report) for _ in range(LIVE)))
        finally:
            await engine.stop()

    async def _client(
        self,
        engine: Engine,
        vocabulary: int,
        documents: list[tuple[int, ...]],
        end: float,
        report: Callable[[str], None],
    ) -> None:
        while (left := end - time.perf_counter()) > 0:
            report(f"recording, {left:.0f} s left")
            kept = self._random.choice([0, 0, self._random.randrange(self._history)])
            own = prompt_of_length(vocabulary, self._random.randint(*_SHORT), self._random.randrange(1 << 30))
            prompt = self._random.choice(documents)[:kept] + own
            answer = self._random.randint(*_ANSWER)
            await follow(engine.submit(GenerationRequest(prompt, answer, ignore_eos=True, seed=0)))
