"""Stages that tell a planner about their machines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from longspan.errors import ProtocolError, RingError
from longspan.model.source import GgufSource
from longspan.placement.demand import Demand
from longspan.placement.model_shape import ModelShape
from longspan.placement.node import COORDINATOR
from longspan.placement.placement import place
from longspan.ring import survey_server
from longspan.ring.frame import Frame, Kind
from longspan.ring.keys import create_authority, create_node
from longspan.ring.launcher import LocalLauncher
from longspan.ring.model_shape import shape_of
from longspan.ring.security import SecurityOptions, load_security
from longspan.ring.stage_process import StageOptions
from longspan.ring.stage_server import StageServer
from longspan.ring.survey_client import probed_layers, survey_nodes
from longspan.ring.survey_messages import REPORT, SURVEY, NodeReport, Speed, Survey
from tests.ring.scripted_ring import DIGEST, LAYERS, Coordinator, ScriptedLoader, ring_plan, stage_servers

SHAPE = ModelShape("scripted", DIGEST, (1 << 20,) * LAYERS, 0, 1 << 20, (64,) * LAYERS, 16, 512)


def addresses(servers: Sequence[StageServer]) -> list[tuple[str, int]]:
    return [("127.0.0.1", server.port) for server in servers]


async def test_what_does_not_grow_with_the_layers_belongs_to_the_iteration() -> None:
    texts: list[str] = []
    slow, quick = ScriptedLoader(seconds=0.004), ScriptedLoader(seconds=0.001)
    async with stage_servers(slow, quick) as servers:
        nodes, network = await survey_nodes(addresses(servers), SHAPE, report=texts.append)
        names = [f"127.0.0.1:{server.port}" for server in servers]
    assert [node.name for node in nodes] == [node.address for node in nodes] == names
    assert 0.004 <= nodes[0].iteration_seconds + LAYERS * nodes[0].layer_seconds < 0.02
    assert nodes[1].iteration_seconds < nodes[0].iteration_seconds
    assert nodes[0].memory_bytes > 1 << 30 > nodes[0].reserve_bytes > 0
    for pair in ((COORDINATOR, names[0]), (COORDINATOR, names[1]), (names[0], names[1])):
        assert (min(pair), max(pair)) in network.links
        assert 0 < network.between(*pair).seconds < 0.05
    assert any("measuring the output matrix" in text and text.startswith(names[0]) for text in texts)
    assert (slow.open, quick.open) == (0, 0)


async def test_only_a_coordinator_asks_and_only_stages_measure_their_way(tmp_path: Path) -> None:
    create_authority(tmp_path / "keys")
    create_node(tmp_path / "keys", "coordinator", "coordinator")
    create_node(tmp_path / "keys", "garage", "stage")
    coordinator, garage = (
        load_security(SecurityOptions(str(tmp_path / "keys" / name))) for name in ("coordinator", "garage")
    )
    servers = [StageServer(ScriptedLoader(), garage) for _ in range(2)]
    try:
        for server in servers:
            await server.start("127.0.0.1", 0)
        nodes, network = await survey_nodes(addresses(servers), SHAPE, security=coordinator)
        assert (min(node.name for node in nodes), max(node.name for node in nodes)) in network.links
        with pytest.raises(RingError, match="only that of a coordinator may ask for this"):
            await survey_nodes(addresses(servers), SHAPE, security=garage)
    finally:
        await asyncio.gather(*(server.close() for server in servers))


async def test_a_stage_that_serves_is_not_measured() -> None:
    loader = ScriptedLoader()
    async with stage_servers(loader) as servers, Coordinator(ring_plan([servers[0].port]), loader):
        with pytest.raises(RingError, match=r"stage 127.0.0.1:\d+ could not measure its speed: it serves a ring"):
            await survey_nodes(addresses(servers), SHAPE)


async def test_a_stage_of_another_model_refuses() -> None:
    async with stage_servers(ScriptedLoader(digest="ee" * 32)) as servers:
        with pytest.raises(RingError, match="refused: model mismatch"):
            await survey_nodes(addresses(servers), SHAPE)


async def test_why_layers_could_not_be_measured_is_passed_on() -> None:
    async with stage_servers(ScriptedLoader(load_error=RingError("no such layers here"))) as servers:
        with pytest.raises(RingError, match="could not measure its speed: no such layers here"):
            await survey_nodes(addresses(servers), SHAPE)


async def test_stages_that_cannot_reach_each_other_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_way(*_arguments: object) -> None:
        raise RingError("no way")

    async with stage_servers(ScriptedLoader(), ScriptedLoader()) as servers:
        monkeypatch.setattr(survey_server, "dial", no_way)
        with pytest.raises(RingError, match=rf"has no way to stage 127.0.0.1:{servers[1].port}"):
            await survey_nodes(addresses(servers), SHAPE)


async def test_nobody_there_is_named() -> None:
    with pytest.raises(RingError, match=r"stage 127.0.0.1:1: cannot reach"):
        await survey_nodes([("127.0.0.1", 1)], SHAPE)


async def test_a_stage_serves_again_after_a_planner_that_went_in_the_middle() -> None:
    loader = ScriptedLoader(seconds=0.01)
    async with stage_servers(loader) as servers:
        asking = asyncio.create_task(survey_nodes(addresses(servers), SHAPE))
        await asyncio.sleep(0.15)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        async with Coordinator(ring_plan([servers[0].port]), loader) as ring:
            assert ring is not None


@pytest.mark.parametrize(
    "message",
    [
        NodeReport(-1, None, ()),
        NodeReport(1, Speed(float("nan"), 0, 0, 0, 0), ()),
        NodeReport(1, Speed(1e9, 0, 0, 0, 0), ()),
        NodeReport(1, None, (None,) * 65),
        NodeReport(1, None, (), "x" * 2001),
    ],
)
def test_reports_are_bounded(message: NodeReport) -> None:
    with pytest.raises(ProtocolError, match="does not hold NodeReport"):
        REPORT.decode(REPORT.encode(message))


@pytest.mark.parametrize(
    "message", [Survey(0, 1), Survey(1, 5000), Survey(1, 1, (("", 1),)), Survey(1, 1, (("h", 0),))]
)
def test_surveys_are_bounded(message: Survey) -> None:
    with pytest.raises(ProtocolError, match="does not hold Survey"):
        SURVEY.decode(SURVEY.encode(message))


def test_a_frame_of_another_kind_is_no_survey() -> None:
    with pytest.raises(ProtocolError, match="expected a SURVEY frame, got PING"):
        SURVEY.decode(Frame(Kind.PING, b""))


def test_large_models_are_probed_with_some_layers_and_small_ones_with_nearly_all() -> None:
    large = ModelShape("large", DIGEST, (100 << 20,) * 40, 0, 1, (1,) * 40, 16, 512)
    assert (probed_layers(SHAPE), probed_layers(large)) == (LAYERS - 1, 2)


async def test_a_real_stage_process_is_measured(tiny_model: Path) -> None:
    handle = await LocalLauncher().start(0, StageOptions(str(tiny_model), threads=1))
    try:
        shape = shape_of(GgufSource(tiny_model))
        (node,), network = await survey_nodes([handle.address], shape)
    finally:
        await handle.stop()
    assert 0 < node.layer_seconds < 0.05
    assert node.head_seconds is not None
    placement = place(shape, [node], network, Demand(slots=2, cells=64, depth=16))
    assert [(stage.start, stage.end) for stage in placement.stages] == [(0, 4)]
    assert 10 < placement.prediction.plain < 1e5
