"""An engine with a lock forms exactly that ring, or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from longspan.engine import Engine, EngineOptions
from longspan.errors import LockError, LongspanError, TopologyMismatchError, UsageError
from longspan.model.source import GgufSource
from longspan.placement.lock import LockedStage, TopologyLock, encode_lock
from tests.engine.answers import request, whole
from tests.engine.conftest import Scripted
from tests.engine.test_engine import PROMPT

WriteLock = Callable[..., str]


@pytest.fixture
def write_lock(tiny_model: Path, tmp_path: Path) -> WriteLock:
    """Writes a lock of the tiny model over two nodes, with fields replaced; its path."""
    source = GgufSource(tiny_model)
    lock = TopologyLock(
        1, source.description.model_id, source.digest, 4, (LockedStage("a", 0, 1), LockedStage("b", 1, 4))
    )

    def write(**fields: object) -> str:
        path = tmp_path / "ring.lock"
        path.write_bytes(encode_lock(msgspec.structs.replace(lock, **fields)))
        return str(path)

    return write


async def refusal(options: EngineOptions) -> LongspanError:
    engine = Engine(options)
    with pytest.raises(LongspanError) as caught:
        await engine.start()
    return caught.value


async def test_local_stages_hold_the_locked_layers(tiny_model: Path, write_lock: WriteLock) -> None:
    engine = Engine(EngineOptions(str(tiny_model), lock=write_lock(), threads=1, context=64, slots=1))
    await engine.start()
    try:
        assert [(stage.start, stage.end) for stage in engine.ring().stages] == [(0, 1), (1, 4)]
        assert len((await whole(engine.submit(request(PROMPT, 3)))).tokens) == 3
    finally:
        await engine.stop()


async def test_named_stages_must_be_the_locked_ones(
    scripted: Scripted, tiny_model: Path, write_lock: WriteLock
) -> None:
    async with scripted(2) as running:
        here = tuple(f"127.0.0.1:{server.port}" for server in running.servers)
        await running.engine.stop()
        stages = (LockedStage("a", 0, 1, here[0]), LockedStage("b", 1, 4, here[1]))
        path = write_lock(stages=stages)
        error = await refusal(EngineOptions(str(tiny_model), lock=path, ring=(here[1], here[0])))
        assert isinstance(error, TopologyMismatchError)
        assert f"stage 0 is {here[0]} in the lock, {here[1]} in the ring" in str(error)
        error = await refusal(EngineOptions(str(tiny_model), lock=path, ring=here[:1]))
        assert "the lock has 2 stages, the ring 1" in str(error)
        engine = Engine(EngineOptions(str(tiny_model), lock=path))
        await engine.start()
        try:
            assert [(stage.address, stage.end) for stage in engine.ring().stages] == [(here[0], 1), (here[1], 4)]
        finally:
            await engine.stop()


async def test_another_model_is_refused_before_a_stage_starts(tiny_model: Path, write_lock: WriteLock) -> None:
    error = await refusal(EngineOptions(str(tiny_model), lock=write_lock(digest="ab" * 32)))
    assert isinstance(error, TopologyMismatchError)
    assert error.exit_code == 3
    assert "the lock is of the model abababababab" in str(error)


async def test_options_that_contradict_the_lock_are_refused(tiny_model: Path, write_lock: WriteLock) -> None:
    for options in ({"stages": 2}, {"splits": "0-4"}, {"hold_first_stage": True}):
        error = await refusal(EngineOptions(str(tiny_model), lock=write_lock(), **options))
        assert isinstance(error, UsageError)
        assert "leave --stages" in str(error)


async def test_a_lock_that_cannot_be_read(tiny_model: Path, tmp_path: Path) -> None:
    assert isinstance(await refusal(EngineOptions(str(tiny_model), lock=str(tmp_path / "none"))), LockError)
