"""What the loss of a stage costs: processes are killed while streams run, and the phases of healing are timed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import time
from collections.abc import Callable

import msgspec

from longspan.engine import Engine, EngineOptions, RequestStream
from longspan.errors import RingError
from longspan.request import GenerationRequest
from longspan.ring.launcher import STANDBY_SECONDS

ANSWER_TOKENS = 4096
PROMPT_TOKENS = 64
POLL_SECONDS = 0.002
HEAL_SECONDS = 60.0
APART_SECONDS = STANDBY_SECONDS + 2.0
"""Between two losses: the process that takes the place of the next one is ready then, as it is when it matters."""


class HealRound(msgspec.Struct, frozen=True):
    """One loss, in seconds, phases one after the other.

    detect: from the kill to the end of the ring. relaunch: until the new process has the coordinator's assignment.
    load: until the ring has formed. replay: until the last of the streams has its next token.
    pause: longest time between two tokens of any stream.
    """

    stage: int
    detect: float
    relaunch: float
    load: float
    replay: float
    pause: float


class HealFigures(msgspec.Struct, frozen=True):
    """All rounds, and their medians. beyond_load: median of the pause without the load."""

    model_id: str
    quantisation: str
    stages: int
    streams: int
    rounds: tuple[HealRound, ...]
    detect: float
    relaunch: float
    load: float
    replay: float
    pause: float
    beyond_load: float
    longest_pause: float


class _Watched:
    """One stream, and when its tokens came."""

    def __init__(self, stream: RequestStream) -> None:
        self._stream = stream
        self.last = time.perf_counter()
        self.longest = 0.0
        self.tokens = 0

    def cancel(self) -> None:
        self._stream.cancel()

    async def follow(self) -> None:
        async for piece in self._stream:
            now = time.perf_counter()
            self.longest = max(self.longest, now - self.last)
            self.last = now
            self.tokens += len(piece.tokens)


class _Marks:
    """When each phase began, from what the engine reports. Called on the engine's thread."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self.loading = 0.0

    def __call__(self, text: str) -> None:
        if "loading layers" in text:
            self.loading = time.perf_counter()
        self._report(text)


async def bench_heal(
    model: str,
    *,
    stages: int,
    streams: int,
    rounds: int,
    threads: int | None,
    report: Callable[[str], None],
) -> HealFigures:
    """Kill one of `stages` local processes, `rounds` times. Raises RingError when the ring does not heal."""
    marks = _Marks(report)
    # Long answers need a long context: every round, the streams go on where they were.
    options = EngineOptions(
        model, stages=stages, slots=streams, threads=threads, context=min(4096, ANSWER_TOKENS), proposer="none"
    )
    engine = Engine(options, on_progress=marks)
    await engine.start()
    try:
        done = []
        for number in range(rounds):
            await asyncio.sleep(APART_SECONDS)
            done.append(await _one_loss(engine, marks, streams, number))
            report(f"loss {number + 1} of {rounds}: a pause of {done[-1].pause:.2f} s")
        known = engine.model.description
    finally:
        await engine.stop()

    def median(of: Callable[[HealRound], float]) -> float:
        return statistics.median(of(entry) for entry in done)

    return HealFigures(
        known.model_id,
        known.quantisation,
        stages,
        streams,
        tuple(done),
        median(lambda entry: entry.detect),
        median(lambda entry: entry.relaunch),
        median(lambda entry: entry.load),
        median(lambda entry: entry.replay),
        median(lambda entry: entry.pause),
        median(lambda entry: entry.pause - entry.load),
        max(entry.pause for entry in done),
    )


async def _one_loss(engine: Engine, marks: _Marks, streams: int, number: int) -> HealRound:
    chance = random.Random(number)
    watched = [_Watched(engine.submit(_request(chance))) for _ in range(streams)]
    following = [asyncio.create_task(each.follow()) for each in watched]
    try:
        async with asyncio.timeout(HEAL_SECONDS):
            await _until(lambda: all(each.tokens > 4 for each in watched))
            ring = engine.ring()
            victim = ring.stages[number % len(ring.stages)]
            if victim.pid is None:
                raise RingError("the stages are not processes of this machine: nothing to kill")
            for each in watched:
                each.longest = 0.0
            killed = time.perf_counter()
            os.kill(victim.pid, signal.SIGKILL)
            await _until(lambda: not engine.readiness().ready)
            detected = time.perf_counter()
            await _until(lambda: marks.loading > killed)
            await _until(lambda: engine.ring().epoch > ring.epoch)
            formed = time.perf_counter()
            await _until(lambda: all(each.last > formed for each in watched))
        replayed = max(each.last for each in watched)
        return HealRound(
            victim.index,
            detected - killed,
            marks.loading - detected,
            formed - marks.loading,
            replayed - formed,
            max(each.longest for each in watched),
        )
    except TimeoutError:
        raise RingError(f"the ring has not healed within {HEAL_SECONDS:g} s") from None
    finally:
        for each in watched:
            each.cancel()
        async with asyncio.timeout(HEAL_SECONDS):
            await asyncio.gather(*following, return_exceptions=True)


def _request(chance: random.Random) -> GenerationRequest:
    prompt = tuple(chance.randrange(100, 200) for _ in range(PROMPT_TOKENS))
    return GenerationRequest(prompt, ANSWER_TOKENS - PROMPT_TOKENS - 1, ignore_eos=True)


async def _until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for happens in other threads and processes
        await asyncio.sleep(POLL_SECONDS)
