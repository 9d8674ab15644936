"""`make chaos`: faults at random against rings of real processes, while eight streams run with speculation on.

    python -m tests.chaos.run --stages 2 --stages 3 --faults 200 [--seed N] [--json]

Every stream asks for an answer, checks it token by token against what the unsplit model answers, and asks for the
next. No request may be lost but for those that run while the coordinator itself is killed; these get a clear error.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from longspan.model.storage import CACHE_VARIABLE
from tests.chaos.processes import Ring
from tests.tiny_models import write_tiny_model

STREAMS = 8
TOKENS = 60
SILENCE = 1.5
"""Seconds without a sign of life after which the coordinator gives a stage up."""

KINDS = ("kill", "stop", "cut", "stall", "half-close", "corrupt", "replace", "coordinator")
WEIGHTS = (4, 3, 5, 2, 4, 4, 3, 1)


@dataclasses.dataclass
class Outcome:
    """What became of everything. longest_pause: seconds between two events of a stream. recovery: longest time, for
    each kind of fault, until the ring was ready again, in seconds."""

    stages: int
    faults: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    finished: int = 0
    wrong: int = 0
    lost: list[str] = dataclasses.field(default_factory=list)
    lost_with_coordinator: int = 0
    unclear: list[str] = dataclasses.field(default_factory=list)
    tokens: int = 0
    longest_pause: float = 0.0
    recovery: dict[str, float] = dataclasses.field(default_factory=dict)
    memory_before: int = 0
    memory_after: int = 0
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        return not (self.wrong or self.lost or self.unclear) and self.finished > 0

    def summary(self) -> dict[str, Any]:
        return {
            "stages": self.stages,
            "faults": dict(self.faults),
            "faults_all": sum(self.faults.values()),
            "requests_finished": self.finished,
            "tokens_compared": self.tokens,
            "requests_with_other_tokens": self.wrong,
            "requests_lost": self.lost,
            "requests_lost_with_the_coordinator": self.lost_with_coordinator,
            "unclear_errors": self.unclear,
            "longest_pause_seconds": round(self.longest_pause, 2),
            "longest_recovery_seconds": {kind: round(seconds, 2) for kind, seconds in self.recovery.items()},
            "memory_mib": [self.memory_before >> 20, self.memory_after >> 20],
            "seconds": round(self.seconds, 1),
            "good": self.good,
        }


def body_of(index: int) -> dict[str, Any]:
    """Request number `index`; some drawn with a seed, some greedy, some that repeat themselves (for drafts)."""
    chance = random.Random(index)
    prompt = [chance.randrange(3, 250) for _ in range(chance.randrange(2, 9))]
    body: dict[str, Any] = {
        "model": "default",
        "prompt": prompt * chance.choice((1, 3, 6)),
        "max_tokens": chance.randrange(TOKENS // 2, TOKENS),
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
        "temperature": 0.0,
    }
    if index % 3:
        body |= {"temperature": 0.9, "top_p": 0.95, "seed": index}
    return body


async def ask(
    client: httpx.AsyncClient,
    index: int,
    outcome: Outcome | None = None,
    on_token: Callable[[], None] = lambda: None,
) -> list[int]:
    """The tokens of one answer. Raises RuntimeError with the server's words, httpx errors when it is cut off."""
    tokens: list[int] = []
    last = time.monotonic()
    async with client.stream("POST", "/v1/completions", json=body_of(index)) as answer:
        if answer.status_code != 200:
            await answer.aread()
            raise RuntimeError(f"{answer.status_code}: {answer.json()['error']['message']}")
        async for line in answer.aiter_lines():
            if outcome is not None:
                outcome.longest_pause = max(outcome.longest_pause, time.monotonic() - last)
            last = time.monotonic()
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            for choice in event["choices"]:
                tokens += choice.get("token_ids") or []
                on_token()
    return tokens


class Chaos:
    """One ring, its streams, and what happens to it."""

    def __init__(self, ring: Ring, expected: list[list[int]], seed: int, stages: int) -> None:
        self._ring = ring
        self._expected = expected
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._running = True
        self._away = False
        self._came_back = 0.0
        self._progress = [0.0] * STREAMS
        self.outcome = Outcome(stages)

    async def run(self, faults: int) -> Outcome:
        started = time.monotonic()
        await asyncio.gather(*(self._ask_once(index, index) for index in range(STREAMS)))
        self.outcome.memory_before = self._memory()
        streams = [asyncio.create_task(self._stream(number)) for number in range(STREAMS)]
        for number in range(faults):
            await asyncio.sleep(self._random.uniform(0.2, 0.8))
            kind = await self._fault()
            happened = time.monotonic()
            await self._until_ready()
            took = time.monotonic() - happened
            await self._until_progress(time.monotonic())
            self.outcome.recovery[kind] = max(self.outcome.recovery.get(kind, 0.0), took)
            if sys.stderr.isatty() or number % 20 == 19:
                print(f"{number + 1} faults, {self.outcome.finished} requests", file=sys.stderr, flush=True)
        self._running = False
        async with asyncio.timeout(150):
            await asyncio.gather(*streams)
        self.outcome.memory_after = self._memory()
        self.outcome.seconds = time.monotonic() - started
        return self.outcome

    def _memory(self) -> int:
        """Of the largest process: they start anew at different times."""
        return max(child.memory() for child in (self._ring.coordinator, *self._ring.stages))

    # ------------------------------------------------------------------------------------------------- requests

    async def _stream(self, stream: int) -> None:
        while self._running:
            if self._away:
                await asyncio.sleep(0.1)
            else:
                await self._ask_once(next(self._numbers), stream)

    async def _ask_once(self, number: int, stream: int) -> None:
        def progress() -> None:
            self._progress[stream] = time.monotonic()

        outcome, index = self.outcome, number % len(self._expected)
        asked = time.monotonic()
        try:
            async with httpx.AsyncClient(base_url=self._ring.url, timeout=150) as client:
                tokens = await ask(client, index, outcome, progress)
        except (httpx.HTTPError, RuntimeError) as error:
            if self._away or asked <= self._came_back:
                outcome.lost_with_coordinator += 1
                if not str(error) and not isinstance(error, httpx.TransportError):
                    outcome.unclear.append(repr(error))
            else:
                outcome.lost.append(f"{type(error).__name__}: {error}"[:300])
            return
        outcome.finished += 1
        outcome.tokens += len(tokens)
        outcome.wrong += tokens != self._expected[index]

    async def _until_progress(self, since: float, seconds: float = 30.0) -> None:
        """Wait until every stream has a token more: what a request is lost by four times in a row, before it has
        come one token further, is held to be its own fault."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while min(self._progress) < since:  # noqa: ASYNC110 - of many streams
                    await asyncio.sleep(0.05)

    async def _until_ready(self, seconds: float = 60.0) -> None:
        """Wait until the ring serves again, so that every fault meets a ring that works."""
        async with asyncio.timeout(seconds), httpx.AsyncClient(base_url=self._ring.url, timeout=5) as client:
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    if (await client.get("/ready")).status_code == 200:
                        return
                await asyncio.sleep(0.05)

    # --------------------------------------------------------------------------------------------------- faults

    async def _fault(self) -> str:
        (kind,) = self._random.choices(KINDS, WEIGHTS)
        index = self._random.randrange(len(self._ring.stages))
        stage, relay = self._ring.stages[index], self._ring.relays[index]
        match kind:
            case "kill":
                await stage.kill()
                await asyncio.sleep(self._random.uniform(0.0, 0.5))
                await stage.start()
            case "stop":
                stage.send(signal.SIGSTOP)
                await asyncio.sleep(self._random.choice((0.3, 2 * SILENCE)))
                stage.send(signal.SIGCONT)
            case "cut":
                relay.cut()
            case "stall":
                await relay.stall(self._random.choice((0.3, 2 * SILENCE)))
            case "half-close":
                relay.half_close()
            case "corrupt":
                relay.corrupt()
            case "replace":  # another process takes the place, while the old one still hangs
                stage.send(signal.SIGSTOP)
                await asyncio.sleep(0.2)
                await stage.kill()
                await stage.start()
            case "coordinator":
                self._away = True
                await self._ring.coordinator.kill()
                await self._ring.coordinator.start()
                self._came_back = time.monotonic()
                self._away = False
        self.outcome.faults[kind] += 1
        await asyncio.sleep(0.1)
        return kind


async def expected_answers(model: str, count: int) -> list[list[int]]:
    """What the unsplit model answers, without speculation and without anything happening to it."""
    from longspan.bench.child_server import child_server

    arguments = ["-m", "longspan", "serve", model, "--quiet", "--threads", "1", "--context", "256", "--port", "0"]
    async with (
        child_server([*arguments, "--proposer", "none"]) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        return [await ask(client, index) for index in range(count)]


async def chaos(folder: Path, stages: int, faults: int, seed: int, requests: int = 24) -> Outcome:
    """One run against a ring of so many stages. folder: where the tiny model is written, and everybody's cache."""
    os.environ[CACHE_VARIABLE] = str(folder / "cache")
    path = folder / "tiny.gguf"
    if not path.exists():
        write_tiny_model(path, "llama", weight_type="Q8_0")
    expected = await expected_answers(str(path), requests)
    ring = Ring(str(path), stages, slots=STREAMS, seed=seed, silence=SILENCE)
    try:
        await ring.start()
        return await Chaos(ring, expected, seed, stages).run(faults)
    finally:
        await ring.stop()


def main() -> int:
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
            outcomes.append(asyncio.run(chaos(Path(folder), size, share, arguments.seed)))
            if not arguments.json:
                print_outcome(outcomes[-1])
    if arguments.json:
        print(json.dumps([outcome.summary() for outcome in outcomes], indent=2))
    return 0 if all(outcome.good for outcome in outcomes) else 1


def print_outcome(outcome: Outcome) -> None:
    for name, value in outcome.summary().items():
        print(f"{name.replace('_', ' '):<36} {value}")
    print(flush=True)


if __name__ == "__main__":
    sys.exit(main())
