"""Rings of stages that come by themselves: they wait, come back, are replaced, and outlive their coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from longspan.engine import Engine, EngineOptions
from longspan.engine import gathering as gathering_module
from longspan.errors import RingError, UnknownStageError, UsageError
from longspan.model.source import GgufSource
from longspan.ring.membership import DismissedError, Membership
from longspan.ring.seating import Member
from longspan.ring.stage_server import StageServer
from longspan.runtime.script import Script
from longspan.runtime.scripted import ScriptedEmbedding
from tests.engine.answers import first, request, rest, until, whole
from tests.engine.conftest import LAYERS, WIDTH
from tests.engine.test_engine import PROMPT, truth
from tests.ring.scripted_ring import ScriptedLoader
from tests.tiny_models import END_TOKEN


@dataclasses.dataclass
class JoinedStage:
    """A stage that registers. loader: what it has loaded so far."""

    server: StageServer
    loader: ScriptedLoader
    task: asyncio.Task[None]

    async def kill(self) -> None:
        """As its process would go: nothing is told to anybody."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.server.close()


@dataclasses.dataclass
class Gathered:
    """Stages and engines around one join address."""

    port: int
    model: Path
    script: Script
    texts: list[str] = dataclasses.field(default_factory=list)
    stages: list[JoinedStage] = dataclasses.field(default_factory=list)
    engines: list[Engine] = dataclasses.field(default_factory=list)

    async def join(self, name: str) -> JoinedStage:
        source = GgufSource(self.model)
        loader = ScriptedLoader(self.script, digest=source.digest, width=WIDTH, layers=LAYERS, seconds=0.002)
        server = StageServer(loader)
        await server.start("127.0.0.1", 0)
        membership = Membership(
            ("127.0.0.1", self.port), name, "", server.port, digest=loader.digest, held=lambda: server.held
        )
        stage = JoinedStage(server, loader, asyncio.create_task(membership.run()))
        self.stages.append(stage)
        return stage

    def engine(self, **options: object) -> Engine:
        engine = Engine(
            EngineOptions(
                str(self.model),
                join=f"127.0.0.1:{self.port}",
                **{"stages": 2, **options},  # type: ignore[arg-type]
            ),
            on_progress=self.texts.append,
        )
        self.engines.append(engine)
        return engine


@pytest.fixture
def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture
async def gathered(tiny_model: Path, monkeypatch: pytest.MonkeyPatch, free_port: int) -> AsyncIterator[Gathered]:
    monkeypatch.setattr(gathering_module, "REJOIN_SECONDS", 0.3)
    monkeypatch.setattr(
        GgufSource,
        "token_embedding",
        lambda source, library=None: ScriptedEmbedding(source.description.vocabulary, WIDTH),
    )
    script = Script(GgufSource(tiny_model).description.vocabulary, end_token=END_TOKEN)
    found = Gathered(free_port, tiny_model, script)
    try:
        yield found
    finally:
        for engine in found.engines:
            await engine.stop()
        for stage in found.stages:
            await stage.kill()


def places(engine: Engine) -> list[tuple[str, int]]:
    return [(stage.address, stage.start) for stage in engine.ring().stages]


def at(*stages: JoinedStage) -> list[tuple[str, int]]:
    return [(f"127.0.0.1:{stage.server.port}", 2 * index) for index, stage in enumerate(stages)]


async def test_it_is_ready_when_every_stage_is(gathered: Gathered) -> None:
    engine = gathered.engine()
    starting = asyncio.create_task(engine.start())
    await until(lambda: any("stages can join at" in text for text in gathered.texts))
    await until(
        lambda: any(
            "layers 0-2 (stage 0), layers 2-4 (stage 1) missing; 0 are there" in text for text in gathered.texts
        )
    )
    one = await gathered.join("one")
    await until(lambda: any("layers 2-4 (stage 1) missing; 1 are there" in text for text in gathered.texts))
    assert not starting.done()
    two = await gathered.join("two")
    await asyncio.wait_for(starting, 10)
    assert places(engine) == at(one, two)
    assert (await whole(engine.submit(request(PROMPT, 9)))).tokens == truth(gathered.script, request(PROMPT, 9))


async def test_a_stage_that_goes_while_the_first_ring_forms_is_waited_for(gathered: Gathered) -> None:
    await gathered.join("one")
    broken = await gathered.join("two")
    broken.loader.load_error = RingError("it is gone")
    engine = gathered.engine()
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0.5)
    assert not starting.done()
    broken.loader.load_error = None
    await asyncio.wait_for(starting, 10)


@pytest.mark.parametrize("change", ["comes back", "is removed"])
async def test_a_ring_that_waits_for_a_ghost_forms_anew_when_that_is_another_process(
    gathered: Gathered, change: str
) -> None:
    """The ghost accepts connections and says nothing, as a process that is stopped does."""
    ghost = socket.create_server(("127.0.0.1", 0))
    port = ghost.getsockname()[1]
    membership = Membership(("127.0.0.1", gathered.port), "two", "", port, digest="", held=lambda: None)
    haunting = asyncio.create_task(membership.run())
    engine = gathered.engine()
    starting = asyncio.create_task(engine.start())
    try:
        await until(lambda: any("stages can join at" in text for text in gathered.texts))
        await until(lambda: len(registered(engine)) == 1)
        one = await gathered.join("one")
        await until(lambda: "loading" in [stage.state for stage in engine.ring().stages])
        await asyncio.sleep(0.1)
        assert not starting.done()
        if change == "is removed":
            three = await gathered.join("three")
            await until(lambda: len(registered(engine)) == 3)
            await engine.remove_stage("two")
        else:
            three = await gathered.join("two")
        await asyncio.wait_for(starting, 10)
        assert engine.ring().epoch == 1
        assert places(engine) in (at(one, three), at(three, one))
        assert (await whole(engine.submit(request(PROMPT, 9)))).tokens == truth(gathered.script, request(PROMPT, 9))
        with pytest.raises(DismissedError):
            await haunting
    finally:
        haunting.cancel()
        ghost.close()


@pytest.fixture
async def serving(gathered: Gathered) -> Gathered:
    """Two stages, and an engine that serves."""
    await gathered.join("one")
    await gathered.join("two")
    await gathered.engine().start()
    return gathered


async def test_a_spare_takes_over_and_the_answer_goes_on(serving: Gathered) -> None:
    (engine,), (one, two) = serving.engines, serving.stages
    spare = await serving.join("spare")
    lost, kept = (one, two) if places(engine) == at(one, two) else (two, one)
    stream = engine.submit(request(PROMPT, 80))
    answer = await first(stream, 3)
    await lost.kill()
    await rest(answer, stream)
    assert answer.tokens == truth(serving.script, request(PROMPT, 80))
    assert places(engine) == at(spare, kept)
    assert len(kept.loader.loads) == 1


async def test_without_a_spare_it_waits_for_the_lost_one_by_its_name(serving: Gathered) -> None:
    (engine,), (one, two) = serving.engines, serving.stages
    lost, kept, name = (two, one, "two") if places(engine) == at(one, two) else (one, two, "one")
    stream = engine.submit(request(PROMPT, 80))
    answer = await first(stream, 3)
    await lost.kill()
    await until(
        lambda: f"layers 2-4 (stage 1 of {name}, which is not there) missing" in str(engine.readiness().missing)
    )
    back = await serving.join(name)
    await rest(answer, stream)
    assert answer.tokens == truth(serving.script, request(PROMPT, 80))
    assert places(engine) == at(kept, back)


async def test_who_comes_back_replaces_its_ghost(serving: Gathered) -> None:
    """The old process still holds its links, as one that is stopped does; nobody waits for it."""
    (engine,), (one, two) = serving.engines, serving.stages
    name = "one" if places(engine) == at(one, two) else "two"
    ghost = one if name == "one" else two
    stream = engine.submit(request(PROMPT, 80))
    answer = await first(stream, 3)
    back = await serving.join(name)
    await rest(answer, stream)
    assert answer.tokens == truth(serving.script, request(PROMPT, 80))
    assert places(engine)[0] == at(back)[0]
    with pytest.raises(DismissedError, match=f"another process has joined as {name}"):
        await ghost.task


async def test_a_coordinator_that_comes_back_finds_its_layers_loaded(serving: Gathered) -> None:
    (engine,) = serving.engines
    before = places(engine)
    await engine.stop()
    again = serving.engine()
    await asyncio.wait_for(again.start(), 20)
    assert places(again) == before
    assert [len(stage.loader.loads) for stage in serving.stages] == [1, 1]
    assert (await whole(again.submit(request(PROMPT, 5)))).tokens == truth(serving.script, request(PROMPT, 5))


async def test_the_operator_sends_a_stage_away(serving: Gathered) -> None:
    (engine,), (one, two) = serving.engines, serving.stages
    spare = await serving.join("spare")
    await until(lambda: "spare" in str([member.name for member in registered(engine)]))
    first_is_one = places(engine) == at(one, two)
    assert {member.name: member.stage for member in engine.ring().members} == {
        "one": 0 if first_is_one else 1,
        "two": 1 if first_is_one else 0,
        "spare": None,
    }
    await engine.remove_stage("one")
    with pytest.raises(DismissedError, match="the operator has removed one"):
        await asyncio.wait_for(one.task, 5)
    await until(
        lambda: places(engine) == (at(spare, two) if first_is_one else at(two, spare)) and engine.readiness().ready
    )
    assert {member.name: member.stage for member in engine.ring().members} == {
        "spare": 0 if first_is_one else 1,
        "two": 1 if first_is_one else 0,
    }
    with pytest.raises(UnknownStageError, match="no stage 'one' has joined; there is"):
        await engine.remove_stage("one")


def registered(engine: Engine) -> tuple[Member, ...]:
    core = engine._core
    assert core is not None
    assert core._formation._gathering is not None
    return core._formation._gathering._registrar.members


async def test_stages_that_are_called_cannot_be_removed(
    scripted: Callable[..., contextlib.AbstractAsyncContextManager[object]],
) -> None:
    async with scripted(2) as running:
        assert running.engine.ring().members == ()  # type: ignore[attr-defined]
        with pytest.raises(UnknownStageError, match="none can be removed"):
            await running.engine.remove_stage("one")  # type: ignore[attr-defined]


def test_called_or_joined() -> None:
    with pytest.raises(UsageError, match="not both"):
        EngineOptions(join="127.0.0.1:1", ring=("127.0.0.1:2",))
