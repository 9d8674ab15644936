"""What speculation brings over distance: arms side by side, for texts, link delays and numbers of requests."""

from __future__ import annotations

import asyncio
import contextlib
import math
import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

import msgspec

from longspan.bench.paired import paired
from longspan.bench.timeline import follow
from longspan.bench.wan_stages import Filled, filled, typical
from longspan.bench.wan_texts import MOST_REQUESTS, prompts, repeated_share
from longspan.engine import Engine, EngineOptions
from longspan.errors import UsageError
from longspan.model.chat_template import ChatTemplate
from longspan.model.source import ModelSource
from longspan.model.tokenizer import Tokenizer
from longspan.request import GenerationRequest
from longspan.speculate.ledger import SpeculationStatistics

TREE = "tree"
"""The arm of `--latency tree`: one request at a time, so it runs with one request only. Its stages take turns, so
each gets all threads of the machine."""
ARMS = ("none", "ngram-suffix", "mtp", "mtp+ngram", "auto", TREE)
WARM_UP_TOKENS = 32
REPEATS_FROM = {"copy": 0.9, "edit": 0.5}
"""Share of repeated tokens from which on an answer counts as what its text is meant to be."""

Prompts = Sequence[tuple[int, ...]]


class WanRow(msgspec.Struct, frozen=True):
    """One arm under one condition.

    tokens_per_second: of all requests, after their first tokens; median over runs. ratio_to_none: median over
    rounds. tokens_per_traversal, useful_rows, stale_rows, in_flight_average (rows): over all runs; without
    speculation every row is useful, and what is in flight was not counted. identical: the tokens are those of
    `none`, in every run. noise: relative difference of the two runs of a round, median.
    filled_tokens_per_second, stage_rate, stage_share: once the ring is filled, beside what the slowest stage could
    serve (see `bench.wan_stages.Filled`); None where nothing came after the fill.
    """

    text: str
    delay_ms: float
    concurrency: int
    arm: str
    tokens_per_second: float
    ratio_to_none: float
    tokens_per_traversal: float
    useful_rows: int
    stale_rows: int
    in_flight_average: float | None
    identical: bool
    noise: float
    filled_tokens_per_second: float | None
    stage_rate: float | None
    stage_share: float | None


class TextFigures(msgspec.Struct, frozen=True):
    """repeated_share: of the answers' tokens, those in runs that were there before. as_meant: a copy is one."""

    text: str
    repeated_share: float
    as_meant: bool


class WanFigures(msgspec.Struct, frozen=True):
    """Results of `longspan bench wan`, but for the frontier."""

    rows: tuple[WanRow, ...]
    texts: tuple[TextFigures, ...]
    model: str
    quantisation: str
    stages: int
    threads: int
    tokens: int
    rounds: int


class WanPlan(msgspec.Struct, frozen=True):
    """What to measure. model: reference. tokens: of each answer. rounds: of all arms forwards and backwards."""

    model: str
    texts: tuple[str, ...]
    delays_ms: tuple[float, ...]
    concurrency: tuple[int, ...]
    arms: tuple[str, ...]
    tokens: int
    rounds: int
    stages: int
    threads: int

    def __post_init__(self) -> None:
        if max(self.concurrency) > MOST_REQUESTS:
            raise UsageError(f"there are {MOST_REQUESTS} prompts of each text, so at most so many requests at once")
        if "none" not in self.arms:
            raise UsageError("without the arm 'none' there is nothing to compare with")


class Run(NamedTuple):
    """One measurement. answers: tokens of each request. before, after: figures of speculation."""

    tokens_per_second: float
    answers: tuple[tuple[int, ...], ...]
    before: SpeculationStatistics | None
    after: SpeculationStatistics | None
    filled: Filled | None


class Arm:
    """A running engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._runs = 0

    async def run(self, prompts: Prompts, tokens: int, *, to_the_end: bool) -> Run:
        """All prompts at once, answered greedily. to_the_end: past the model's end tokens."""
        self._runs += 1
        before = await asyncio.to_thread(self._engine.activity, math.inf)
        # A salt of its own keeps a run from being served out of the KV of the one before.
        requests = [
            GenerationRequest(prompt, tokens, ignore_eos=to_the_end, seed=0, cache_salt=str(self._runs))
            for prompt in prompts
        ]
        answers = await asyncio.gather(*(follow(self._engine.submit(request)) for request in requests))
        after = await asyncio.to_thread(self._engine.activity, before.now)
        seconds = max(answer.arrivals[-1] for answer in answers) - min(answer.arrivals[0] for answer in answers)
        later = sum(len(answer.tokens) - 1 for answer in answers)
        return Run(
            later / seconds if seconds > 0 else 0.0,
            tuple(tuple(answer.tokens) for answer in answers),
            before.statistics.speculation,
            after.statistics.speculation,
            filled(after.iterations),
        )


@contextlib.asynccontextmanager
async def running(options: EngineOptions) -> AsyncIterator[Arm]:
    """An engine while it is needed."""
    engine = Engine(options)
    await engine.start()
    try:
        yield Arm(engine)
    finally:
        await engine.stop()


class Wan:
    """The benchmark over one plan."""

    def __init__(self, plan: WanPlan, source: ModelSource, report: Callable[[str], None]) -> None:
        self._plan = plan
        self._report = report
        self._known = source.description
        tokenizer = Tokenizer(source.vocabulary_file())
        template = ChatTemplate(source.chat_template) if source.chat_template is not None else None
        self.prompts = {text: prompts(text, tokenizer, template) for text in plan.texts}
        longest = max(len(prompt) for found in self.prompts.values() for prompt in found)
        self._context = longest + plan.tokens + 1
        self._shares: dict[str, list[float]] = {text: [] for text in plan.texts}

    def options(self, delay_ms: float, proposer: str, shape: tuple[int, int] | None = None) -> EngineOptions:
        """An arm's engine; shape: width and depth, None: chosen by itself."""
        plan = self._plan
        return EngineOptions(
            plan.model,
            stages=plan.stages,
            threads=None if proposer == TREE else plan.threads,
            slots=max(plan.concurrency),
            context=self._context,
            link_delay_ms=delay_ms,
            proposer="auto" if proposer == TREE else proposer,
            latency="tree" if proposer == TREE else "window",
            width=shape[0] if shape is not None else None,
            depth=shape[1] if shape is not None else None,
        )

    async def measure(self) -> WanFigures:
        """Every condition, one after the other; the arms of a delay are resident together."""
        rows: list[WanRow] = []
        plan, known = self._plan, self._known
        for delay in plan.delays_ms:
            async with contextlib.AsyncExitStack() as stack:
                arms: dict[str, Arm] = {}
                for name in plan.arms:
                    self._report(f"{delay:g} ms: starting {name}")
                    arms[name] = await stack.enter_async_context(running(self.options(delay, name)))
                    for text in plan.texts:
                        for count in plan.concurrency if name != TREE else (1,):
                            await self.run(arms[name], text, count, WARM_UP_TOKENS)
                for text in plan.texts:
                    for count in plan.concurrency:
                        rows += await self._condition(arms, text, delay, count)
        texts = tuple(
            TextFigures(text, share := statistics.mean(shares), share >= REPEATS_FROM.get(text, 0.0))
            for text, shares in self._shares.items()
        )
        return WanFigures(
            tuple(rows),
            texts,
            known.model_id,
            known.quantisation,
            plan.stages,
            plan.threads,
            plan.tokens,
            plan.rounds,
        )

    async def run(self, arm: Arm, text: str, count: int, tokens: int) -> Run:
        """`count` requests of a text on an arm."""
        return await arm.run(self.prompts[text][:count], tokens, to_the_end=text in REPEATS_FROM)

    async def _condition(self, arms: dict[str, Arm], text: str, delay: float, count: int) -> list[WanRow]:
        names = [name for name in arms if name != TREE or count == 1]
        runs: dict[str, list[Run]] = {name: [] for name in names}
        order = [*names, *reversed(names)]
        for number in range(self._plan.rounds):
            for name in order:
                self._report(f"{text}, {delay:g} ms, {count} requests: round {number + 1}, {name}")
                runs[name].append(await self.run(arms[name], text, count, self._plan.tokens))
        answers = runs["none"][0].answers
        self._shares[text] += [
            repeated_share(prompt, answer)
            for prompt, answer in zip(self.prompts[text][:count], answers, strict=True)
        ]
        return [_row(text, delay, count, name, runs[name], runs["none"]) for name in names]


def _row(text: str, delay: float, count: int, arm: str, runs: list[Run], none: list[Run]) -> WanRow:
    rates = [run.tokens_per_second for run in runs]
    found = paired(rates, [run.tokens_per_second for run in none])
    windows = committed = useful = stale = 0
    row_seconds = seconds = 0.0
    for run in runs:
        if run.before is None or run.after is None:
            rows = sum(len(answer) - 1 for answer in run.answers)
            windows, committed, useful = windows + rows, committed + rows, useful + rows
            continue
        windows += run.after.windows - run.before.windows
        committed += run.after.committed_tokens - run.before.committed_tokens
        useful += run.after.useful_rows - run.before.useful_rows
        stale += run.after.stale_rows - run.before.stale_rows
        row_seconds += _row_seconds(run.after) - _row_seconds(run.before)
        seconds += run.after.seconds - run.before.seconds
    stage = typical([run.filled for run in runs])
    return WanRow(
        text=text,
        delay_ms=delay,
        concurrency=count,
        arm=arm,
        tokens_per_second=statistics.median(rates),
        ratio_to_none=found.ratio,
        tokens_per_traversal=committed / windows if windows else 0.0,
        useful_rows=useful,
        stale_rows=stale,
        in_flight_average=row_seconds / seconds if seconds else None,
        identical=all(run.answers == none[0].answers for run in runs),
        noise=found.noise,
        filled_tokens_per_second=None if stage is None else stage.tokens_per_second,
        stage_rate=None if stage is None else stage.stage_rate,
        stage_share=None if stage is None else stage.share,
    )


def _row_seconds(figures: SpeculationStatistics) -> float:
    return (figures.useful_in_flight + figures.stale_in_flight) * figures.seconds
