"""What long prompts do to streams that are decoding, with and without mixed iterations."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from longspan.bench.paired import paired
from longspan.bench.prompts import prompt_of_length
from longspan.bench.timeline import follow
from longspan.engine import Engine, EngineOptions
from longspan.request import GenerationRequest

DECODERS = 4
ARMS = ("homogeneous", "mixed")
_SHORT_PROMPT = 24
_ANSWER_TO_PROMPT = 4
"""Tokens that a long prompt generates itself."""


class InterferenceFigures(msgspec.Struct, frozen=True):
    """Mixed over homogeneous, for one number of stages; ratios are medians over rounds.

    p95_gap_ratio, max_gap_ratio: time between two pieces of a decoding stream while prompts are in the ring.
    ttft_p50_ratio: time to first token of the long prompts. throughput_ratio: tokens of decoding streams and of
    prompts a second. noise: relative spread of the throughput of one arm within a round, median.
    identical_tokens: that every stream gave the same tokens in every round of both arms.
    homogeneous, mixed: medians over rounds; gaps and times in milliseconds.
    """

    stages: int
    p95_gap_ratio: float
    max_gap_ratio: float
    ttft_p50_ratio: float
    throughput_ratio: float
    noise: float
    identical_tokens: bool
    homogeneous: dict[str, float]
    mixed: dict[str, float]
    rounds: int
    prompts: int
    prompt_tokens: int


class _Round(msgspec.Struct, frozen=True):
    p95_gap_ms: float
    max_gap_ms: float
    ttft_p50_ms: float
    tokens_per_second: float
    tokens: tuple[tuple[int, ...], ...]


class Interference:
    """The benchmark's settings. answer_tokens: what each decoding stream generates while prompts arrive."""

    def __init__(
        self, model: str, *, rounds: int, prompts: int, prompt_tokens: int, answer_tokens: int, threads: int | None
    ) -> None:
        self._model = model
        self._rounds = rounds
        self._prompts = prompts
        self._prompt_tokens = prompt_tokens
        self._answer_tokens = answer_tokens
        self._threads = threads
        self._rounds_run = 0

    async def compare(self, stages: int, report: Callable[[str], None]) -> InterferenceFigures:
        """Both arms, resident at the same time, in the order A B B A."""
        context = max(self._prompt_tokens + 64, self._answer_tokens + _SHORT_PROMPT + 64)
        engines = {
            arm: Engine(
                EngineOptions(
                    self._model,
                    stages=stages,
                    threads=self._threads,
                    context=context,
                    proposer="none",
                    mixing=arm == "mixed",
                )
            )
            for arm in ARMS
        }
        results: dict[str, list[_Round]] = {arm: [] for arm in ARMS}
        try:
            for arm, engine in engines.items():
                report(f"{stages} stage(s): warm-up, {arm}")
                await engine.start()
                await self._round(engine)
            for number in range(self._rounds):
                for arm in (ARMS[0], ARMS[1], ARMS[1], ARMS[0]):
                    report(f"{stages} stage(s): round {number + 1} of {self._rounds}, {arm}")
                    results[arm].append(await self._round(engines[arm]))
        finally:
            for engine in engines.values():
                await engine.stop()
        return self._figures(stages, results)

    def _request(self, prompt: tuple[int, ...], tokens: int) -> GenerationRequest:
        return GenerationRequest(prompt, tokens, ignore_eos=True, seed=0, cache_salt=str(self._rounds_run))

    async def _round(self, engine: Engine) -> _Round:
        """Four streams decode; once all of them do, the long prompts arrive one after the other."""
        # A salt of its own keeps a round from being served out of the KV of the one before.
        self._rounds_run += 1
        vocabulary = engine.model.description.vocabulary
        begun = [asyncio.Event() for _ in range(DECODERS)]
        started = time.perf_counter()
        decoders = [
            asyncio.ensure_future(
                follow(
                    engine.submit(
                        self._request(prompt_of_length(vocabulary, _SHORT_PROMPT, seed), self._answer_tokens)
                    ),
                    begun[seed],
                )
            )
            for seed in range(DECODERS)
        ]
        for event in begun:
            await event.wait()
        arrival = time.perf_counter()
        prompts = []
        for number in range(self._prompts):
            prompt = prompt_of_length(vocabulary, self._prompt_tokens, 1000 + number)
            prompts.append(await follow(engine.submit(self._request(prompt, _ANSWER_TO_PROMPT))))
        prefilled = prompts[-1].arrivals[0]
        answers = [await decoder for decoder in decoders]
        ended = max(answer.arrivals[-1] for answer in answers + prompts)
        gaps = [gap for answer in answers for gap in answer.gaps(arrival, prefilled)]
        work = sum(len(answer.tokens) for answer in answers) + self._prompts * self._prompt_tokens
        return _Round(
            p95_gap_ms=1000 * float(np.percentile(gaps, 95)),
            max_gap_ms=1000 * max(gaps),
            ttft_p50_ms=1000 * statistics.median(prompt.time_to_first_token for prompt in prompts),
            tokens_per_second=work / (ended - started),
            tokens=tuple(tuple(answer.tokens) for answer in answers + prompts),
        )

    def _figures(self, stages: int, results: dict[str, list[_Round]]) -> InterferenceFigures:
        def compare(field: str) -> tuple[float, float]:
            a, b = ([float(getattr(round_, field)) for round_ in results[arm]] for arm in ARMS)
            found = paired(b, a)
            return found.ratio, found.noise

        def medians(arm: str) -> dict[str, float]:
            fields = ("p95_gap_ms", "max_gap_ms", "ttft_p50_ms", "tokens_per_second")
            return {field: statistics.median(getattr(round_, field) for round_ in results[arm]) for field in fields}

        throughput, noise = compare("tokens_per_second")
        return InterferenceFigures(
            stages=stages,
            p95_gap_ratio=compare("p95_gap_ms")[0],
            max_gap_ratio=compare("max_gap_ms")[0],
            ttft_p50_ratio=compare("ttft_p50_ms")[0],
            throughput_ratio=throughput,
            noise=noise,
            identical_tokens=len({round_.tokens for arm in ARMS for round_ in results[arm]}) == 1,
            homogeneous=medians(ARMS[0]),
            mixed=medians(ARMS[1]),
            rounds=self._rounds,
            prompts=self._prompts,
            prompt_tokens=self._prompt_tokens,
        )


def bench_interference(
    benchmark: Interference, stages: Sequence[int], report: Callable[[str], None]
) -> list[InterferenceFigures]:
    """One row for each number of stages."""
    return [asyncio.run(benchmark.compare(count, report)) for count in stages]
