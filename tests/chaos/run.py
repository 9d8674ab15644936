"""`make chaos`: faults at random against rings of real processes, while eight streams run with speculation on.

    python -m tests.chaos.run --stages 2 --stages 3 --faults 200 [--seed N] [--json]

Every stream asks for an answer, checks it token by token against what the unsplit model answers, and asks for the
next. No request may be lost but for those that run while the coordinator itself goes; these get a clear error.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from longspan.model.storage import CACHE_VARIABLE
from tests.chaos.clock import Clock
from tests.chaos.faults import Faults, schedule
from tests.chaos.outcome import Outcome
from tests.chaos.processes import Ring
from tests.chaos.requests import RefusedError, ask, expected_answers
from tests.tiny_models import write_tiny_model

STREAMS = 8
CROWD = 20
"""Requests at once when a queue is filled: more than run and wait together."""
WAITING = 8
"""Requests that may wait."""
HANGS_SECONDS = 1200.0
"""Nothing takes so long. Not less, for a machine may stand still in between; see `Clock`."""


class Chaos:
    """One ring, its streams, and what happens to it."""

    def __init__(self, ring: Ring, expected: list[list[int]], seed: int, stages: int) -> None:
        self._ring = ring
        self._expected = expected
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._running = True
        self._away = False
        self._went = ""
        self._came_back = 0.0
        self._progress = [0.0] * STREAMS
        self._clock = Clock()
        self._faults = Faults(ring, self._random, crowd=self._crowd, restart=self._restart)
        self.outcome = Outcome(stages)

    async def run(self, kinds: Sequence[str]) -> Outcome:
        """These faults, one after the other. Raises RuntimeError when the ring does not come back."""
        started = time.monotonic()
        ticking = asyncio.create_task(self._clock.run())
        await asyncio.gather(*(self._ask_once(index, index) for index in range(STREAMS)))
        streams = [asyncio.create_task(self._stream(number)) for number in range(STREAMS)]
        for number, kind in enumerate(kinds, 1):
            await asyncio.sleep(self._random.uniform(0.1, 0.5))
            began = time.monotonic()
            await self._faults.inflict(kind)
            self.outcome.faults[kind] += 1
            happened = time.monotonic()
            await asyncio.sleep(0.1)
            await self._until_ready(kind)
            took = time.monotonic() - happened
            await self._until_progress(time.monotonic())
            self.outcome.recovery[kind] = max(self.outcome.recovery.get(kind, 0.0), took)
            self._look_at_memory()
            seconds = f"{time.monotonic() - began:.1f} s"
            print(f"{number:>4} {kind:<20} {seconds:>7} {self.outcome.finished:>6} requests", file=sys.stderr)
        self._running = False
        async with asyncio.timeout(HANGS_SECONDS):
            await asyncio.gather(*streams)
        ticking.cancel()
        self.outcome.standstill = self._clock.standstill
        self.outcome.seconds = time.monotonic() - started
        return self.outcome

    def _look_at_memory(self) -> None:
        memory, ring = self.outcome.memory, self._ring
        memory.look("coordinator", ring.coordinator.pid, ring.coordinator.memory())
        for stage in ring.stages:
            memory.look("stage", stage.pid, stage.memory())

    # ------------------------------------------------------------------------------------------------- requests

    async def _stream(self, stream: int) -> None:
        while self._running:
            if self._away:
                await asyncio.sleep(0.1)
            else:
                await self._ask_once(next(self._numbers), stream)

    async def _ask_once(self, number: int, stream: int | None) -> None:
        """One request, its answer compared. stream: whose it is; None: one of a crowd."""
        outcome, index = self.outcome, number % len(self._expected)
        asked = last = self._clock.look()

        def progress() -> None:
            nonlocal last
            if stream is not None:
                outcome.longest_pause = max(outcome.longest_pause, self._clock.since(last))
                self._progress[stream] = time.monotonic()
            last = time.monotonic()

        try:
            async with httpx.AsyncClient(base_url=self._ring.url, timeout=HANGS_SECONDS) as client:
                tokens = await ask(client, index, progress)
        except RefusedError:
            outcome.refused += 1
            await asyncio.sleep(0.3 if stream is not None else 0.0)
            return
        except (httpx.HTTPError, RuntimeError) as error:
            self._note_loss(asked, error)
            return
        outcome.finished += 1
        outcome.tokens += len(tokens)
        outcome.wrong += tokens != self._expected[index]

    def _note_loss(self, asked: float, error: httpx.HTTPError | RuntimeError) -> None:
        said = f"{type(error).__name__}: {error}"[:300]
        if not self._away and asked > self._came_back:
            self.outcome.lost.append(said)
            return
        self.outcome.lost_with_coordinator[f"{self._went}: {said}"] += 1
        # Who is killed says nothing more, and the connection ends; who is asked to stop says so to everybody.
        told = isinstance(error, RuntimeError | httpx.ConnectError) and str(error)
        cut_off = self._went == "SIGKILL" and isinstance(error, httpx.TransportError)
        if not (told or cut_off):
            self.outcome.unclear.append(said)

    async def _crowd(self) -> None:
        await asyncio.gather(*(self._ask_once(next(self._numbers), None) for _ in range(CROWD)))

    async def _until_progress(self, since: float, seconds: float = 30.0) -> None:
        """Wait until every stream has a token more: what a request is lost by four times in a row, before it has
        come one token further, is held to be its own fault."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while min(self._progress) < since:  # noqa: ASYNC110 - of many streams
                    await asyncio.sleep(0.05)

    async def _until_ready(self, kind: str, looks: int = 1200) -> None:
        """Wait until the ring serves again, so that every fault meets a ring that works."""
        async with httpx.AsyncClient(base_url=self._ring.url, timeout=5) as client:
            for _ in range(looks):
                with contextlib.suppress(httpx.HTTPError):
                    if (await client.get("/ready")).status_code == 200:
                        return
                await asyncio.sleep(0.05)
        words = "\n".join(self._ring.coordinator.last_lines)
        raise RuntimeError(f"not ready again after: {kind}\n{words}")

    # ---------------------------------------------------------------------------------------------- coordinator

    async def _restart(self, number: signal.Signals) -> None:
        """End the coordinator and start it again. Its stages shall keep what they loaded."""
        self._went, self._away = number.name, True
        before = [stage.pid for stage in self._ring.stages]
        await self._ring.coordinator.end(number)
        await self._ring.coordinator.start()
        self._came_back = time.monotonic()
        self._away = False
        loaded = sum(": loading layers" in line for line in self._ring.coordinator.last_lines)
        self.outcome.reloaded += loaded + (before != [stage.pid for stage in self._ring.stages])


async def chaos(folder: Path, stages: int, kinds: Sequence[str], seed: int, requests: int = 24) -> Outcome:
    """One run against a ring of so many stages.

    folder: where the tiny model is written, and everybody's cache. requests: different ones that are asked.
    """
    os.environ[CACHE_VARIABLE] = str(folder / "cache")
    path = folder / "tiny.gguf"
    if not path.exists():
        write_tiny_model(path, "llama", weight_type="Q8_0")
    expected = await expected_answers(str(path), requests)
    ring = Ring(str(path), stages, slots=STREAMS, waiting=WAITING, seed=seed)
    try:
        await ring.start()
        return await Chaos(ring, expected, seed, stages).run(kinds)
    finally:
        await ring.stop()


def main() -> int:
    """Run it, print what happened; 1 when anything was harmed."""
    parser = argparse.ArgumentParser(description="faults at random against rings of real processes")
    parser.add_argument("--stages", type=int, action="append")
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    sizes = arguments.stages or [2, 3]
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="longspan-chaos-") as folder:
        for size in sizes:
            share = arguments.faults // len(sizes)
            kinds = schedule(share, random.Random(arguments.seed + size))
            outcomes.append(asyncio.run(chaos(Path(folder), size, kinds, arguments.seed)))
            if not arguments.json:
                print_outcome(outcomes[-1])
    if arguments.json:
        print(json.dumps([outcome.summary() for outcome in outcomes], indent=2))
    return 0 if all(outcome.good for outcome in outcomes) else 1


def print_outcome(outcome: Outcome) -> None:
    """Line by line."""
    for name, value in outcome.summary().items():
        print(f"{name.replace('_', ' '):<36} {value}")
    print(flush=True)


if __name__ == "__main__":
    sys.exit(main())
