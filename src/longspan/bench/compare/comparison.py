"""Two arms against each other: rounds of A B B A, one server at a time, every request kept."""

from __future__ import annotations

import dataclasses
import datetime
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from longspan.bench.child_server import child_server
from longspan.bench.compare.arm import Arm, build_of
from longspan.bench.compare.build import Build
from longspan.bench.compare.contention import Contention, contention
from longspan.bench.compare.gate import Gate, GateResult, pass_gate
from longspan.bench.compare.verdict import Better, Verdict, judge
from longspan.bench.load.answer import LoadAnswer
from longspan.bench.load.datasets import DatasetOrder, load_prompts
from longspan.bench.load.endpoint import Backend, Endpoint, Sampling
from longspan.bench.load.figures import latency_keys, load_figures
from longspan.bench.load.run import run_load
from longspan.errors import LongspanError, UsageError
from longspan.model.reference import resolve
from longspan.observe.machine import Machine, describe_machine
from longspan.observe.trace_reader import read_trace

METRICS: dict[str, Better] = {
    "output_throughput": "higher",
    "median_ttft_ms": "lower",
    "p95_ttft_ms": "lower",
    "median_tpot_ms": "lower",
    "median_itl_ms": "lower",
    "p95_itl_ms": "lower",
    "p99_longest_gap_ms": "lower",
    "median_e2el_ms": "lower",
}
"""What is compared. A metric that is 0 in a pass (no gaps in answers of one chunk) is left out."""

ORDER = "ABBA"


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What both arms are asked, in every pass the same. concurrency: a closed loop of so many users."""

    dataset: DatasetOrder
    backend: Backend = "openai-chat"
    output_tokens: int = 32
    concurrency: int = 4
    warmups: int = 2
    rounds: int = 5


class Pass(msgspec.Struct, frozen=True):
    """One server's life: an arm once. figures: by metric."""

    arm: str
    round: int
    figures: dict[str, float]
    contention: Contention
    answers: tuple[LoadAnswer, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All that was measured, and what follows from it. digests: of the model of each arm.

    identical: every request had the same text in all passes; differing: numbers of those that had not.
    """

    date: str
    arms: tuple[Arm, Arm]
    workload: Workload
    verdicts: tuple[Verdict, ...]
    identical: bool
    differing: tuple[int, ...]
    contended: bool
    gate: GateResult
    machine: Machine
    builds: tuple[Build, Build]
    digests: tuple[str, str]
    passes: tuple[Pass, ...]


@dataclasses.dataclass(frozen=True)
class Rounds:
    """Carries the passes out. report: what is being done. Traces go to a folder that is gone afterwards."""

    arms: tuple[Arm, Arm]
    workload: Workload
    report: Callable[[str], None]

    async def compare(self, gate: Gate) -> Comparison:
        """All rounds, and the verdict.

        Raises UsageError when prompts or gate cannot be used; LongspanError when a server does not come up, a
        request fails, an answer is shorter than was asked, or the source changed meanwhile.
        """
        builds = (await build_of(self.arms[0]), await build_of(self.arms[1]))
        digests = tuple(resolve(arm.model).digest for arm in self.arms)
        date = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        passes: list[Pass] = []
        with tempfile.TemporaryDirectory() as folder:
            for number in range(self.workload.rounds):
                for letter in ORDER:
                    name = self.arms[ORDER.index(letter)].name
                    self.report(f"round {number + 1} of {self.workload.rounds}, {letter} ({name})")
                    passes.append(await self._pass(ORDER.index(letter), number, Path(folder) / "trace.jsonl"))
        if (await build_of(self.arms[0]), await build_of(self.arms[1])) != builds:
            raise LongspanError("the source changed while it was measured; compare builds that stay as they are")
        verdicts = judged(passes)
        differing = differing_answers(passes)
        contended = all(found.contention.proven(self.workload.concurrency) for found in passes)
        return Comparison(
            date=date,
            arms=self.arms,
            workload=self.workload,
            verdicts=verdicts,
            identical=not differing,
            differing=differing,
            contended=contended,
            gate=pass_gate(gate, verdicts, transcripts=not differing, contention=contended),
            machine=describe_machine(),
            builds=builds,
            digests=(digests[0], digests[1]),
            passes=tuple(passes),
        )

    async def _pass(self, index: int, number: int, trace: Path) -> Pass:
        arm, workload = self.arms[index], self.workload
        async with child_server(arm.arguments(trace), python=arm.python, extra=arm.environment) as url:
            endpoint = Endpoint(url, workload.backend)
            try:
                await endpoint.find_model()
                answers = await self._ask(endpoint)
            finally:
                await endpoint.close()
        figures = load_figures(answers)
        found = {"output_throughput": figures.output_throughput, **latency_keys(figures)}
        return Pass(
            "AB"[index],
            number,
            {name: found[name] for name in METRICS},
            contention(answers, read_trace(trace)),
            tuple(answers),
        )

    async def _ask(self, endpoint: Endpoint) -> list[LoadAnswer]:
        """Warm up with prompts of another seed, then measure. Answers are greedy, and all of one length."""
        workload = self.workload
        sampling = Sampling(max_tokens=workload.output_tokens, ignore_eos=True)
        warm = msgspec.structs.replace(
            workload.dataset, count=workload.warmups, seed=workload.dataset.seed + 1_000_003
        )
        loads = [load_prompts(warm)] if workload.warmups else []
        answers: list[LoadAnswer] = []
        for prompts in (*loads, load_prompts(workload.dataset)):
            prompts = [msgspec.structs.replace(prompt, max_tokens=None, at=None) for prompt in prompts]
            times = [0.0] * len(prompts)
            answers = await run_load(endpoint, prompts, times, sampling, most=workload.concurrency)
        for answer in answers:
            if answer.error:
                raise LongspanError(f"a request failed, so nothing is compared: {answer.error}")
            if answer.output_tokens != workload.output_tokens:
                raise LongspanError(
                    f"an answer has {answer.output_tokens} tokens, {workload.output_tokens} were asked; "
                    "lengths must be fixed. Is the context long enough?"
                )
        return answers


def judged(passes: Sequence[Pass]) -> tuple[Verdict, ...]:
    """The verdict on every metric that all passes have. Raises UsageError when there is none."""
    verdicts = []
    for metric, better in METRICS.items():
        a, b = ([found.figures[metric] for found in passes if found.arm == arm] for arm in "AB")
        if all(value > 0 for value in (*a, *b)):
            verdicts.append(judge(metric, better, a, b))
    if not verdicts:
        raise UsageError("no pass measured anything")
    return tuple(verdicts)


def differing_answers(passes: Sequence[Pass]) -> tuple[int, ...]:
    """Numbers of the requests whose text is not the same in all passes."""
    texts = [[answer.text for answer in found.answers] for found in passes]
    return tuple(number for number, column in enumerate(zip(*texts, strict=True)) if len(set(column)) > 1)
