"""A stage is lost while answers are under way: they go on with the tokens that they would have had."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from longspan.engine import Engine, EngineOptions
from longspan.engine import healing as healing_module
from longspan.errors import RequestTimeoutError, RingError, RingIncompleteError
from longspan.model.source import GgufSource
from longspan.model.storage import CACHE_VARIABLE
from longspan.ring import driver as driver_module
from longspan.ring.stage_server import StageServer
from longspan.runtime.base import Capacity
from longspan.runtime.scripted import RaiseError
from longspan.sampling.parameters import SamplingParameters
from tests.engine.answers import first, request, rest, until, whole
from tests.engine.conftest import Scripted, ScriptedEngine
from tests.engine.test_engine import PROMPT, truth
from tests.ring.scripted_ring import ScriptedLoader

WARM = SamplingParameters(temperature=0.9, top_p=0.95)


async def restart(running: ScriptedEngine, index: int) -> None:
    """Another process at the same address, with nothing loaded."""
    port = running.servers[index].port
    running.servers[index] = server = StageServer(running.loaders[index])
    await server.start("127.0.0.1", port)


@pytest.mark.parametrize("lost", [0, 1])
async def test_streams_go_on_when_a_lost_stage_comes_back(scripted: Scripted, lost: int) -> None:
    requests = [request([*PROMPT, index], 60, sampling=WARM, seed=index) for index in range(5)]
    async with scripted(2, slots=3, seconds=0.002) as running:
        engine = running.engine
        streams = [engine.submit(wanted) for wanted in requests]
        answers = [await first(stream, 3) for stream in streams[:3]]
        old = running.servers[lost]
        await old.close()
        await until(lambda: not engine.readiness().ready)
        (missing,) = engine.readiness().missing
        assert f"stage {lost} (layers " in missing
        assert f"127.0.0.1:{old.port}" in missing
        during = engine.submit(request([99], 10))
        await restart(running, lost)
        for stream, answer in zip(streams, answers, strict=False):
            await rest(answer, stream)
        answers += [await whole(stream) for stream in streams[3:]]
        for wanted, answer in zip(requests, answers, strict=True):
            assert answer.tokens == truth(running.script, wanted)
            assert answer.text == engine.model.tokenizer.decode(answer.tokens)
        assert (await whole(during)).tokens == truth(running.script, request([99], 10))
        assert engine.ring().epoch >= 2
        assert engine.readiness().ready
        statistics = engine.statistics()
        assert (statistics.requests_finished, statistics.requests_failed) == (6, 0)
        assert len(running.loaders[1 - lost].loads) == 1, "the stage that stayed kept its layers"
        await running.servers[lost].close()


async def test_losses_one_after_the_other(scripted: Scripted) -> None:
    async with scripted(2, slots=2, seconds=0.002) as running:
        wanted = request(PROMPT, 90, sampling=WARM, seed=1)
        stream = running.engine.submit(wanted)
        answer = await first(stream, 2)
        for round_, lost in enumerate((0, 1, 1, 0)):
            await running.servers[lost].close()
            await until(lambda: not running.engine.readiness().ready)
            await restart(running, lost)
            await until(lambda: running.engine.readiness().ready)
            while len(answer.tokens) < 6 + 4 * round_:
                answer.take(await anext(stream))
        await rest(answer, stream)
        assert answer.tokens == truth(running.script, wanted)
        assert running.engine.ring().epoch >= 5
        for server in running.servers:
            await server.close()


async def test_a_stage_that_breaks_is_used_again(scripted: Scripted) -> None:
    async with scripted(2, seconds=0.001) as running:
        await whole(running.engine.submit(request([5], 2)))
        assert running.servers[1]._held is not None
        runtime = running.servers[1]._held[1]
        broken = ScriptedLoader(running.script, width=64, layers=4, faults=[RaiseError(10)])
        runtime.run = broken.load(running.loaders[1].loads[0], lambda text: None).run  # type: ignore[method-assign]
        wanted = request(PROMPT, 40, sampling=WARM, seed=3)
        assert (await whole(running.engine.submit(wanted))).tokens == truth(running.script, wanted)
        assert running.engine.ring().epoch == 2


async def test_a_ring_that_does_not_form_in_time_fails_its_requests_and_recovers(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(healing_module, "LAST_RETRY_SECONDS", 0.3)
    async with scripted(2, seconds=0.002, heal_seconds=0.6) as running:
        engine = running.engine
        stream = engine.submit(request(PROMPT, 200))
        waiting = engine.submit(request([7], 5))
        answer = await first(stream, 3)
        lost = running.servers[1]
        started = time.perf_counter()
        await lost.close()
        with pytest.raises(
            RingIncompleteError, match=rf"stage 1 \(layers 2-4, 127.0.0.1:{lost.port}\) was lost"
        ) as why:
            await rest(answer, stream)
        assert "It was not back within 0.6 s; newest try: stage 1 (layers 2-4" in str(why.value)
        assert 0.6 <= time.perf_counter() - started < 2.0
        assert answer.tokens == truth(running.script, request(PROMPT, 200))[: len(answer.tokens)]
        await asyncio.gather(whole(waiting), return_exceptions=True)
        with pytest.raises(
            RingIncompleteError, match=rf"stage 1 \(layers 2-4.*cannot reach 127.0.0.1:{lost.port}"
        ) as no:
            engine.submit(request(PROMPT))
        assert 1.0 <= no.value.retry_after <= healing_module.LAST_RETRY_SECONDS + 1
        assert engine.statistics().requests_failed >= 1
        await restart(running, 1)
        await until(lambda: engine.readiness().ready)
        assert (await whole(engine.submit(request(PROMPT, 9)))).tokens == truth(running.script, request(PROMPT, 9))
        assert engine.statistics().running == 0
        await running.servers[1].close()


async def test_cancelling_while_the_ring_is_down(scripted: Scripted) -> None:
    async with scripted(2, seconds=0.002) as running:
        streams = [running.engine.submit(request([seed], 60)) for seed in (5, 6)]
        answers = [await first(stream, 2) for stream in streams]
        await running.servers[0].close()
        await until(lambda: not running.engine.readiness().ready)
        streams[0].cancel()
        assert (await rest(answers[0], streams[0])).finish_reason == "cancelled"
        await restart(running, 0)
        assert (await rest(answers[1], streams[1])).tokens == truth(running.script, request([6], 60))
        await running.servers[0].close()


async def test_stopping_while_the_ring_is_down(scripted: Scripted) -> None:
    async with scripted(2, seconds=0.002) as running:
        stream = running.engine.submit(request(PROMPT, 200))
        answer = await first(stream, 2)
        await running.servers[0].close()
        await until(lambda: not running.engine.readiness().ready)
        async with asyncio.timeout(5):
            await running.engine.stop()
        with pytest.raises(RingError, match="the engine has stopped"):
            await rest(answer, stream)


async def test_a_stop_wins_when_its_cancellation_is_lost() -> None:
    """What `asyncio.gather` does in the wrong round: the form ends with an error, as if nobody had cancelled it."""
    tries = 0

    async def form() -> Capacity:
        nonlocal tries
        tries += 1
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise RingError("a stage is not there") from None
        raise AssertionError

    async def clear() -> None:
        return

    healing = healing_module.Healing(
        clear=clear,
        form=form,
        on_formed=lambda capacity: pytest.fail("it formed"),
        on_given_up=lambda error: None,
        seconds=60.0,
    )
    healing.begin(RingError("lost"))
    await asyncio.sleep(0.05)
    async with asyncio.timeout(1):
        await healing.stop()
    assert (tries, healing.waiting, healing.missing) == (1, False, ("the engine has stopped",))
    healing.begin(RingError("lost again"))
    assert not healing.waiting


@pytest.mark.parametrize("after_the_grace", [False, True])
async def test_a_stop_wins_over_a_stage_that_does_not_become_ready(
    scripted: Scripted, after_the_grace: bool
) -> None:
    """It accepts the coordinator and loads for ever; the engine does not wait for it."""
    async with scripted(2, seconds=0.002, heal_seconds=0.2 if after_the_grace else 30.0) as running:
        stream = running.engine.submit(request(PROMPT, 200))
        answer = await first(stream, 2)
        stuck, loader = threading.Event(), running.loaders[1]
        load = loader.load
        loader.load = lambda *arguments: (stuck.wait(20), load(*arguments))[1]  # type: ignore[method-assign]
        await running.servers[1].close()
        await restart(running, 1)
        try:
            await until(lambda: running.engine.ring().stages[1].state == "loading")
            if after_the_grace:
                with pytest.raises(RingIncompleteError, match="not back within"):
                    await rest(answer, stream)
            started = time.perf_counter()
            await running.engine.stop()
            assert time.perf_counter() - started < 3
            if not after_the_grace:
                with pytest.raises(RingError, match="the engine has stopped"):
                    await rest(answer, stream)
        finally:
            stuck.set()
            await running.servers[1].close()


async def test_a_deadline_counts_also_while_the_ring_is_down(scripted: Scripted) -> None:
    async with scripted(2, seconds=0.002) as running:
        stream = running.engine.submit(request(PROMPT, 60))
        answer = await first(stream, 2)
        await running.servers[1].close()
        await until(lambda: not running.engine.readiness().ready)
        started = time.perf_counter()
        with pytest.raises(RequestTimeoutError):
            await whole(running.engine.submit(request([7], 5, deadline=0.3)))
        assert 0.25 < time.perf_counter() - started < 5.0
        await restart(running, 1)
        assert (await rest(answer, stream)).tokens == truth(running.script, request(PROMPT, 60))
        await running.servers[1].close()


async def test_what_nobody_expected_while_forming_is_tried_again(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scripted(2, seconds=0.002) as running:
        wanted = request(PROMPT, 60)
        stream = running.engine.submit(wanted)
        answer = await first(stream, 2)
        core = running.engine._core
        assert core is not None
        plan: Callable[[object], Awaitable[object]] = core._formation.plan  # type: ignore[assignment]
        tries, seen = 0, False

        async def failing(report: object) -> object:
            nonlocal tries
            tries += 1
            if tries < 3 or not seen:
                raise BlockingIOError(11, "the process table is full")
            return await plan(report)

        monkeypatch.setattr(core._formation, "plan", failing)
        await running.servers[0].close()
        await until(lambda: "process table" in "".join(running.engine.readiness().missing))
        seen = True
        await restart(running, 0)
        assert (await rest(answer, stream)).tokens == truth(running.script, wanted)
        await running.servers[0].close()


# ------------------------------------------------------------------------------------------------ real processes


REQUESTS = [request([*PROMPT, 20 + index], 120, sampling=WARM, seed=index) for index in range(4)]


@pytest.fixture(scope="module")
def undisturbed(engine_folder: Path) -> list[list[int]]:
    """What the unsplit model answers."""

    async def ask() -> list[list[int]]:
        engine = Engine(EngineOptions(str(engine_folder / "tiny.gguf"), threads=1, context=256))
        await engine.start()
        try:
            return [(await whole(engine.submit(wanted))).tokens for wanted in REQUESTS]
        finally:
            await engine.stop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(engine_folder / "cache"))
        return asyncio.run(ask())


@pytest.mark.parametrize(
    ("hold_first", "blow"), [(False, signal.SIGKILL), (True, signal.SIGKILL), (False, signal.SIGSTOP)]
)
async def test_a_child_that_is_killed_or_stopped_changes_no_token(
    undisturbed: list[list[int]],
    tiny_model: Path,
    hold_first: bool,
    blow: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver_module, "PING_SECONDS", 0.2)
    monkeypatch.setattr(driver_module, "SILENCE_SECONDS", 2.0)
    options = EngineOptions(str(tiny_model), stages=2, hold_first_stage=hold_first, threads=1, context=256, slots=3)
    engine = Engine(options)
    await engine.start()
    try:
        streams = [engine.submit(wanted) for wanted in REQUESTS]
        answers = [await first(stream, 5) for stream in streams[:3]]
        victims = [stage.pid for stage in engine.ring().stages if stage.address != "in this process"]
        assert len(victims) == (1 if hold_first else 2)
        victim = victims[-1]
        assert victim is not None
        os.kill(victim, blow)
        for stream, answer in zip(streams, answers, strict=False):
            await rest(answer, stream)
        answers.append(await whole(streams[3]))
        assert [answer.tokens for answer in answers] == undisturbed
        assert engine.ring().epoch == 2, "one loss, one new ring"
        assert victim not in [stage.pid for stage in engine.ring().stages]
        assert engine.readiness().ready
        children = [stage.pid for stage in engine.ring().stages if stage.pid]
    finally:
        await engine.stop()
    assert not any(psutil.pid_exists(pid) for pid in children)


async def test_a_first_stage_here_is_held_once_however_often_the_ring_forms(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model in memory for every try would soon be the end of the coordinator."""
    monkeypatch.setattr(healing_module, "FIRST_RETRY_SECONDS", 0.02)
    source = GgufSource(tiny_model)
    loader = ScriptedLoader(digest=source.digest, width=64, layers=4)
    server = StageServer(loader)
    await server.start("127.0.0.1", 0)
    engine = Engine(
        EngineOptions(
            str(tiny_model), ring=(f"127.0.0.1:{server.port}",), hold_first_stage=True, threads=1, context=256
        )
    )
    await engine.start()
    try:
        core = engine._core
        assert core is not None
        opened: list[object] = []
        load = core._loader.load

        def counted(*arguments: object) -> object:
            runtime = load(*arguments)  # type: ignore[arg-type]
            opened.append(runtime)
            return runtime

        monkeypatch.setattr(core._loader, "load", counted)
        await server.close()
        await until(lambda: len(opened) >= 3)
        await asyncio.sleep(0.05)
        assert sum(runtime._context._context is not None for runtime in opened) <= 1  # type: ignore[attr-defined]
    finally:
        await engine.stop()
    assert all(runtime._context._context is None for runtime in opened)  # type: ignore[attr-defined]
