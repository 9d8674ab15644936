"""Faults against rings of real processes: no request is lost, no token differs."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from longspan.model.storage import CACHE_VARIABLE
from tests.chaos.faults import WEIGHTS, schedule
from tests.chaos.outcome import FLAT_BYTES, MemoryWatch
from tests.chaos.processes import Child
from tests.chaos.relay import Relay
from tests.chaos.run import chaos


@pytest.mark.parametrize(
    ("stages", "kinds"),
    [
        (2, ["kill", "corrupt"]),
        pytest.param(2, schedule(25, random.Random(2)), marks=pytest.mark.soak),
        pytest.param(3, schedule(25, random.Random(3)), marks=pytest.mark.soak),
    ],
    ids=["short", "two", "three"],
)
async def test_no_request_is_lost_and_no_token_differs(
    stages: int, kinds: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    outcome = await chaos(tmp_path, stages, kinds, seed=stages)
    assert outcome.good, outcome.summary()
    assert sum(outcome.faults.values()) == len(kinds)


def test_every_kind_comes_when_there_are_enough_faults() -> None:
    assert set(schedule(len(WEIGHTS), random.Random(1))) == set(WEIGHTS)
    assert len(schedule(3, random.Random(1))) == 3
    assert len(schedule(200, random.Random(1))) == 200


def test_memory_that_grows_is_seen() -> None:
    watch = MemoryWatch()
    for life, grows in ((1, 0), (2, FLAT_BYTES // 8)):
        for number in range(20):
            watch.look("stage", life, (100 << 20) + grows * number)
        assert watch.flat == (not grows)
    assert watch.growth()["stage"][0] == 0.0


async def _echo() -> tuple[asyncio.Server, int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1000):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


async def test_the_relay_does_what_it_is_told() -> None:
    """Otherwise a run that survives says nothing."""
    server, port = await _echo()
    relay = Relay(port)
    await relay.start()
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert relay.connections == 1
        stalled = asyncio.create_task(relay.stall(0.2))
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        started = loop.time()
        writer.write(b"later")
        assert await reader.readexactly(5) == b"later"
        assert loop.time() - started > 0.15
        await stalled
        assert relay.corrupt()
        writer.write(b"right")
        changed = await reader.readexactly(5)
        assert sum(a != b for a, b in zip(changed, b"right", strict=True)) == 1
        relay.narrow(1000)
        started = loop.time()
        writer.write(bytes(150))
        assert await reader.readexactly(150) == bytes(150)
        assert loop.time() - started > 0.25, "there and back"
        relay.widen()
        assert relay.half_close()
        assert await reader.read(1) == b""
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        writer.write(b"again")
        assert await reader.readexactly(5) == b"again"
        relay.cut()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
    await relay.close()
    server.close()
    await asyncio.sleep(0.05)  # the ends that were aborted close in the next rounds of the loop


async def test_a_child_is_killed_and_started_again() -> None:
    child = Child(["-c", "import time; print('ready', flush=True); time.sleep(60)"], "ready")
    await child.start()
    first = child.pid
    child.send(signal.SIGSTOP)
    assert child.memory() > 0
    await child.kill()
    assert not child.running
    await child.start()
    assert child.pid != first
    await child.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)
