"""`longspan bench compare` on differences that are known, because they are planted.

    python -m tests.bench.compare.planted identical --runs 20
    python -m tests.bench.compare.planted slower --runs 20 --json
    python -m tests.bench.compare.planted noisy --runs 20

identical: two arms that are the same. slower: B's stages take 5 % more of every iteration. noisy: every server of
both arms draws its own slowness of up to 40 %. Each run is a comparison of its own, with real servers. All run a
frozen copy of the sources.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import longspan
from longspan.bench.compare.arm import Arm
from longspan.bench.compare.comparison import Comparison, Rounds, Workload
from longspan.bench.compare.gate import DEFAULT_GATE
from longspan.bench.load.datasets import DatasetOrder
from longspan.model.reference import resolve

KINDS = ("identical", "slower", "noisy")
EXPECTED = {"identical": "no difference", "slower": "regression", "noisy": "inconclusive"}
METRIC = "output_throughput"
SLOWER = 0.05
NOISE = 0.4

INTERPRETER = """\
#!{python}
import os, random, runpy, sys, time
sys.path.insert(0, {sources!r})
os.environ["PYTHONPATH"] = {sources!r}
share = {share}
if share:
    from longspan.ring.stage_compute import StageCompute
    step, debt, last = StageCompute.step, 0.0, 0.0
    def slower(self, *arguments):
        # A share of the time from one result to the next, if work was waiting, else of the computation.
        global debt, last
        started = time.perf_counter()
        found = step(self, *arguments)
        ended = time.perf_counter()
        debt += share * (ended - (last if started - last < 0.005 else started))
        while debt > 0:
            before = time.perf_counter()
            time.sleep(debt)
            debt -= time.perf_counter() - before
        last = time.perf_counter()
        return found
    StageCompute.step = slower
assert sys.argv[1] == "-m"
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
SHARES = {"plain": "0.0", "slower": str(SLOWER), "noisy": f"random.uniform(0.0, {NOISE})"}


class Shape(NamedTuple):
    """How long a comparison is. model: a reference. serve: options of the server."""

    model: str
    serve: tuple[str, ...]
    rounds: int
    requests: int
    output_tokens: int


DEMO = Shape("demo", ("--threads", "1", "--slots", "4", "--context", "256", "--proposer", "none"), 3, 8, 24)


class Planted:
    """Comparisons of one kind. folder: where interpreters and the copy of the sources go."""

    def __init__(self, kind: str, shape: Shape, folder: Path) -> None:
        self._shape = shape
        sources = folder / "sources"
        if not sources.exists():
            package = Path(longspan.__file__).parent
            shutil.copytree(package, sources / "longspan", ignore=shutil.ignore_patterns("__pycache__"))
        names = {"identical": ("plain", "plain"), "slower": ("plain", "slower"), "noisy": ("noisy", "noisy")}
        self._arms = tuple(
            self._arm(letter, share, folder) for letter, share in zip("ab", names[kind], strict=True)
        )

    def _arm(self, letter: str, share: str, folder: Path) -> Arm:
        program = folder / f"python-{share}"
        text = INTERPRETER.format(python=sys.executable, sources=str(folder / "sources"), share=SHARES[share])
        program.write_text(text, encoding="utf-8")
        program.chmod(0o755)
        return Arm(name=f"{letter}: {share}", model=self._shape.model, serve=self._shape.serve, python=str(program))

    async def compare(self, report: Callable[[str], None] = lambda _: None) -> Comparison:
        """One comparison."""
        shape = self._shape
        workload = Workload(
            dataset=DatasetOrder(name="synthetic-medium", count=shape.requests, input_tokens=32),
            output_tokens=shape.output_tokens,
            concurrency=4,
            warmups=4,
            rounds=shape.rounds,
        )
        return await Rounds((self._arms[0], self._arms[1]), workload, report).compare(DEFAULT_GATE)


def line_of(found: Comparison, seconds: float) -> dict[str, Any]:
    """What one comparison says, for people and for the sum."""
    (row,) = (row for row in found.verdicts if row.metric == METRIC)
    return {
        "verdict": row.verdict,
        "change": round(row.change, 4),
        "noise": round(row.noise, 4),
        "other_verdicts": dict(collections.Counter(one.verdict for one in found.verdicts if one is not row)),
        "identical_answers": found.identical,
        "contended": found.contended,
        "seconds": round(seconds, 1),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.compare.planted")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=DEMO.rounds)
    parser.add_argument("--requests", type=int, default=DEMO.requests)
    parser.add_argument("--tokens", type=int, default=DEMO.output_tokens)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    resolve(DEMO.model)
    shape = DEMO._replace(rounds=options.rounds, requests=options.requests, output_tokens=options.tokens)
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        planted = Planted(options.kind, shape, Path(folder))
        for number in range(options.runs):
            started = time.perf_counter()
            line = line_of(asyncio.run(planted.compare()), time.perf_counter() - started)
            lines.append(line)
            print(f"run {number + 1} of {options.runs}: {line}", file=sys.stderr, flush=True)
    counts = dict(collections.Counter(line["verdict"] for line in lines))
    quiet = [line["verdict"] for line in lines if line["noise"] < 0.02]
    summary = {
        "kind": options.kind,
        "expected": EXPECTED[options.kind],
        "runs": len(lines),
        "verdicts": counts,
        "verdicts_where_noise_is_below_2_percent": dict(collections.Counter(quiet)),
        "lines": lines,
    }
    if options.json:
        print(json.dumps(summary, indent=1))
    else:
        for name, value in list(summary.items())[:-1]:
            print(f"{name.replace('_', ' '):<42} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
