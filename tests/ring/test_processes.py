"""Stages as real processes: started, watched, stopped, and gone with whoever started them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

from longspan.errors import RingError
from longspan.model.source import GgufSource
from longspan.ring.driver import RingDriver
from longspan.ring.launcher import LocalLauncher, LocalStage
from longspan.ring.llama_loader import LlamaLoader
from longspan.ring.ring_plan import RingPlan, StagePlace
from longspan.ring.stage_process import StageOptions
from longspan.schedule.span import Iteration, IterationResult, Phase, Span
from tests.whole_model import WholeModel

PROMPT = (40, 41, 42, 80, 90, 7, 200, 3)


async def test_a_stage_process_serves_a_ring_and_survives_it(tiny_model: Path) -> None:
    launcher = LocalLauncher()
    handle = await launcher.start(1, StageOptions(str(tiny_model), threads=1))
    try:
        assert handle.pid is not None
        assert psutil.pid_exists(handle.pid)
        source = GgufSource(tiny_model)
        embeddings = source.token_embedding().rows(np.array(PROMPT, np.int32))
        span = Span(1, 0, 0, 0, PROMPT, Phase.PREFILL, (len(PROMPT) - 1,))
        tokens = []
        for ring in ("first", "second"):
            places = (StagePlace(0, 0, 2, None, near=True), StagePlace(1, 2, 4, handle.address))
            found: asyncio.Future[IterationResult] = asyncio.get_running_loop().create_future()
            driver = RingDriver(
                RingPlan(ring, places, 2, 64, "float32", 0.0),
                LlamaLoader(source, threads=1),
                on_result=found.set_result,
                on_room=lambda: None,
                on_failure=lambda error: pytest.fail(str(error)),
                on_progress=lambda text: None,
            )
            await driver.form()
            driver.send(Iteration(0, (), (), (span,)), embeddings)
            result = await asyncio.wait_for(found, 20)
            tokens.append(result.samples[0].token)
            assert driver.statuses()[1].pid == handle.pid
            await driver.close()
        with WholeModel(tiny_model) as whole:
            assert tokens == whole.greedy(PROMPT, 1) * 2
        assert handle.running
    finally:
        await handle.stop()
    assert not psutil.pid_exists(handle.pid)
    await handle.stop()


async def test_what_a_stage_says_when_it_cannot_start_is_passed_on(tmp_path: Path) -> None:
    with pytest.raises(RingError, match=r"stage 3 could not start: .*no such model.*nothing.gguf"):
        await LocalLauncher().start(3, StageOptions(str(tmp_path / "nothing.gguf")))


def stage_process(options: StageOptions) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "longspan.ring.stage_process", msgspec.json.encode(options).decode()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_stage_quietly(tiny_model: Path, number: signal.Signals) -> None:
    with stage_process(StageOptions(str(tiny_model))) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("stage listening on 127.0.0.1:")
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert errors == ""


def test_a_port_in_use_is_said_and_is_a_usage_error(tiny_model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with stage_process(StageOptions(str(tiny_model), port=port)) as process:
            _, errors = process.communicate(timeout=20)
    assert process.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in errors
    assert "Traceback" not in errors


async def test_whatever_a_stage_writes_it_is_not_held_up() -> None:
    """A pipe that nobody reads would stop it in the middle of its work."""
    program = (
        "import sys; sys.stderr.write('x' * 300_000 + chr(10) + 'done' + chr(10)); print('stage listening on h:7')"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    stage = LocalStage(process)
    await asyncio.wait_for(stage.await_listening(), 10)
    assert stage.address == ("h", 7)
    await asyncio.wait_for(process.wait(), 10)
    await stage.stop()
    assert "done" in stage._last_lines


_PARENT = """
import asyncio, sys
from longspan.ring.launcher import LocalLauncher
from longspan.ring.stage_process import StageOptions

async def main():
    handle = await LocalLauncher().start(0, StageOptions(sys.argv[1]))
    print(handle.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_a_stage_goes_with_the_process_that_started_it(tiny_model: Path) -> None:
    """Even when that is killed and can say nothing."""
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tiny_model)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        os.kill(parent.pid, signal.SIGKILL)
        child.wait(timeout=10)


async def _has_standby(launcher: LocalLauncher) -> int:
    async with asyncio.timeout(30):
        while launcher._standby is None:  # noqa: ASYNC110 - made by a task of its own
            await asyncio.sleep(0.02)
    pid = launcher._standby.pid
    assert pid is not None
    return pid


async def test_a_standby_becomes_the_next_stage_and_ends_with_its_launcher(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longspan.ring.launcher.STANDBY_SECONDS", 0.0)
    launcher = LocalLauncher(standby=True)
    stages = [await launcher.start(0, StageOptions(str(tiny_model), threads=1))]
    try:
        waiting = await _has_standby(launcher)
        assert waiting != stages[0].pid
        stages.append(await launcher.start(1, StageOptions(str(tiny_model), threads=1)))
        assert stages[1].pid == waiting
        assert stages[1].address != stages[0].address
        dead = await _has_standby(launcher)
        os.kill(dead, signal.SIGKILL)
        while launcher._standby is not None and launcher._standby.running:  # noqa: ASYNC110 - the kernel does it
            await asyncio.sleep(0.02)
        stages.append(await launcher.start(2, StageOptions(str(tiny_model), threads=1)))
        assert stages[2].pid != dead
        last = await _has_standby(launcher)
    finally:
        await launcher.close()
        await asyncio.gather(*(stage.stop() for stage in stages))
    assert not psutil.pid_exists(last)


async def test_a_standby_can_become_a_stage_that_cannot_start(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longspan.ring.launcher.STANDBY_SECONDS", 0.0)
    launcher = LocalLauncher(standby=True)
    stage = await launcher.start(0, StageOptions(str(tiny_model), threads=1))
    try:
        await _has_standby(launcher)
        with pytest.raises(RingError, match=r"stage 3 could not start: .*no such model.*nothing.gguf"):
            await launcher.start(3, StageOptions(str(tmp_path / "nothing.gguf")))
    finally:
        await launcher.close()
        await stage.stop()


def test_whoever_never_becomes_a_stage_goes_with_its_parent() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "longspan.ring.stage_process"], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert errors == b""
