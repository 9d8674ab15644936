"""Whether the lab's ring does what a real one does: windows in virtual time against windows over processes."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from longspan.bench.timeline import follow
from longspan.bench.wan_texts import prompts
from longspan.engine import Engine, EngineOptions
from longspan.errors import LongspanError
from longspan.lab.costs import StageCost
from longspan.lab.ring import ModelledRing
from longspan.lab.simulation import Simulation
from longspan.lab.transcript import Transcript
from longspan.lab.workload import Arrival
from longspan.model.source import ModelSource
from longspan.model.tokenizer import Tokenizer
from longspan.observe.trace_reader import read_trace
from longspan.request import GenerationRequest
from longspan.schedule.geometry import Geometry
from longspan.schedule.limits import Limits
from longspan.schedule.planner import Planner
from longspan.schedule.policy import Policy
from longspan.schedule.trace import TraceRecord, kind_of
from longspan.speculate.proposers import proposer_maker
from longspan.speculate.speculation import Speculation, SpeculationPolicy

STAGES = 2
PROPOSER = "ngram-suffix"
TEXT = "edit"
"""A text that is copied with changes: drafts are right and wrong, and no head takes time of its own."""

_ROWS = 63
_SETTLE_SECONDS = 0.3


class Setting(NamedTuple):
    """One-way delay of a link, rows of a window, windows in flight."""

    delay_ms: float
    width: int
    depth: int


FITTED = (Setting(50, 4, 1), Setting(50, 16, 4), Setting(50, 32, 2))
PREDICTED = (
    *(Setting(50, 8, 2), Setting(50, 8, 8), Setting(20, 8, 4)),
    *(Setting(100, 4, 4), Setting(100, 16, 4), Setting(100, 24, 8)),
)


class RingModelRow(msgspec.Struct, frozen=True):
    """A setting: what was measured, what the lab says, and by how much it is off.

    rate_error, stale_error: lab over measured, less 1; of no stale rows at all, the share of the rows sent.
    """

    delay_ms: float
    width: int
    depth: int
    tokens_per_second: float
    lab_tokens_per_second: float
    rate_error: float
    stale_rows: int
    lab_stale_rows: int
    stale_error: float


class RingModelFigures(msgspec.Struct, frozen=True):
    """rows: settings that nothing was fitted on.

    noise: largest relative difference of a fitted setting between the beginning and the end of the run.
    worst_rate_error, worst_stale_error: the largest of the rows, without their sign.
    """

    rows: tuple[RingModelRow, ...]
    worst_rate_error: float
    worst_stale_error: float
    noise: float
    model: str
    quantisation: str
    tokens: int


class Run(NamedTuple):
    """A measured setting. records: of its decode and verify iterations."""

    tokens_per_second: float
    stale_rows: int
    answer: tuple[int, ...]
    records: tuple[TraceRecord, ...]


class FittedRing(NamedTuple):
    """costs: of each stage. overhead: seconds of a link besides its delay."""

    costs: tuple[StageCost, ...]
    overhead: float


class RingModel:
    """The comparison over one model."""

    def __init__(self, reference: str, source: ModelSource, tokens: int, report: Callable[[str], None]) -> None:
        self._reference = reference
        self._known = source.description
        self._tokens = tokens
        self._report = report
        self._prompt = prompts(TEXT, Tokenizer(source.vocabulary_file()), None)[0]
        self._context = len(self._prompt) + tokens + 1

    def compare(self) -> RingModelFigures:
        """Measure the fitted settings, the others, and the fitted ones again. Raises LongspanError."""
        first = [self._measure(setting) for setting in FITTED]
        measured = [self._measure(setting) for setting in PREDICTED]
        last = [self._measure(setting) for setting in FITTED]
        ring = fitted_ring(zip((*FITTED, *FITTED), (*first, *last), strict=True))
        rows = tuple(self._row(setting, run, ring) for setting, run in zip(PREDICTED, measured, strict=True))
        noise = max(abs(a.tokens_per_second / b.tokens_per_second - 1) for a, b in zip(first, last, strict=True))
        return RingModelFigures(
            rows,
            max(abs(row.rate_error) for row in rows),
            max(abs(row.stale_error) for row in rows),
            noise,
            self._known.model_id,
            self._known.quantisation,
            self._tokens,
        )

    def _measure(self, setting: Setting) -> Run:
        self._report(f"{setting.delay_ms:g} ms, {setting.width} x {setting.depth}: over processes")
        with tempfile.TemporaryDirectory() as folder:
            return asyncio.run(self._run(setting, Path(folder) / "trace.jsonl"))

    async def _run(self, setting: Setting, trace: Path) -> Run:
        engine = Engine(
            EngineOptions(
                self._reference,
                stages=STAGES,
                threads=1,
                slots=1,
                context=self._context,
                link_delay_ms=setting.delay_ms,
                proposer=PROPOSER,
                width=setting.width,
                depth=setting.depth,
                trace=str(trace),
            )
        )
        await engine.start()
        try:
            await follow(engine.submit(GenerationRequest(self._prompt, 8, ignore_eos=True, seed=0)))
            await self._settle(setting)
            before = (await asyncio.to_thread(engine.statistics)).speculation
            request = GenerationRequest(self._prompt, self._tokens, ignore_eos=True, seed=0, cache_salt="2")
            answer = await follow(engine.submit(request))
            await self._settle(setting)
            after = (await asyncio.to_thread(engine.statistics)).speculation
        finally:
            await engine.stop()
        assert before is not None and after is not None
        records = tuple(record for record in read_trace(trace) if kind_of(record.spans) == "decode")
        return Run(
            (len(answer.tokens) - 1) / (answer.arrivals[-1] - answer.arrivals[0]),
            after.stale_rows - before.stale_rows,
            tuple(answer.tokens),
            records,
        )

    async def _settle(self, setting: Setting) -> None:
        """What is still in flight behind an answer's end comes back."""
        await asyncio.sleep(2 * setting.delay_ms / 1e3 + _SETTLE_SECONDS)

    def _row(self, setting: Setting, run: Run, ring: FittedRing) -> RingModelRow:
        rate, stale = simulate(self._prompt, run.answer, setting, ring, self._known.vocabulary)
        sent = self._tokens + max(run.stale_rows, stale)
        return RingModelRow(
            *setting,
            tokens_per_second=run.tokens_per_second,
            lab_tokens_per_second=rate,
            rate_error=rate / run.tokens_per_second - 1,
            stale_rows=run.stale_rows,
            lab_stale_rows=stale,
            stale_error=stale / run.stale_rows - 1 if run.stale_rows else stale / sent,
        )


def fitted_ring(runs: Iterable[tuple[Setting, Run]]) -> FittedRing:
    """What the stages take by rows, medians joined by straight lines, and what a link takes besides its delay."""
    seconds: list[dict[int, list[float]]] = [{} for _ in range(STAGES)]
    overheads: list[float] = []
    for setting, run in runs:
        for record in run.records:
            if len(record.stages) != STAGES:
                continue
            rows = sum(span.rows for span in record.spans)
            for stage in record.stages:
                seconds[stage.stage].setdefault(rows, []).append(stage.worked)
            inside = sum(stage.waited + stage.worked for stage in record.stages)
            overheads.append((record.completed_at - record.planned_at - inside) / STAGES - setting.delay_ms / 1e3)
    if not all(len(found) > 1 for found in seconds):
        raise LongspanError("the measured runs tell nothing about what rows cost; run more --tokens")
    costs = tuple(_cost({rows: statistics.median(times) for rows, times in found.items()}) for found in seconds)
    return FittedRing(costs, max(0.0, statistics.median(overheads)))


def simulate(
    prompt: Sequence[int], answer: Sequence[int], setting: Setting, ring: FittedRing, vocabulary: int
) -> tuple[float, int]:
    """(tokens a second after the first, stale rows) of one request in virtual time, by the server's own code."""
    cells = len(prompt) + len(answer) + 1
    limits = Limits(slots=1, cells_per_slot=cells, exact_rows=_ROWS + 1, max_rows=512, chunk=_ROWS)
    speculation = Speculation(
        SpeculationPolicy(proposer=PROPOSER, width=setting.width, depth=setting.depth),
        proposer_maker(PROPOSER),
        rows=_ROWS,
        vocabulary=vocabulary,
    )
    simulation = Simulation(
        Planner(limits, Policy(lanes=STAGES), speculation),
        ModelledRing(
            ring.costs,
            setting.delay_ms / 1e3 + ring.overhead,
            1,
            Transcript((*prompt, *answer), 1, vocabulary),
        ),
        [Arrival(at=0.0, prompt=tuple(prompt), answer=len(answer))],
        lambda _arrival: answer,
    )
    simulation.run()
    (journey,) = simulation.journeys
    times = journey.token_times
    return (len(times) - 1) / (times[-1] - times[0]), speculation.statistics(simulation.now).stale_rows


def _cost(medians: dict[int, float]) -> StageCost:
    """Straight lines between what was measured, and on beyond the ends."""
    rows = np.array(sorted(medians), np.float64)
    times = np.array([medians[int(count)] for count in rows])

    def cost(geometry: Geometry) -> float:
        wanted = float(geometry.rows)
        low = min(max(int(np.searchsorted(rows, wanted)) - 1, 0), len(rows) - 2)
        slope = (times[low + 1] - times[low]) / (rows[low + 1] - rows[low])
        return max(0.0, float(times[low] + slope * (wanted - rows[low])))

    return cost
