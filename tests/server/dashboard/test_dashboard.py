"""The dashboard's frames and stream."""

from __future__ import annotations

import asyncio
import json
import re
import time

import httpx
import msgspec
import pytest

from longspan.schedule.clocks import estimate_clocks
from longspan.schedule.trace import TraceRecord
from longspan.server import ServerOptions
from longspan.server.dashboard import feed
from longspan.server.dashboard.endpoints import FILES, PAGE_PATHS
from longspan.server.dashboard.feed import DashboardFeed
from longspan.server.dashboard.frame import DashboardFrame, dashboard_frame, trips_of
from longspan.speculate.ledger import SpeculationStatistics
from longspan.status import EngineActivity
from tests.observe.test_timeline import record
from tests.server.conftest import running_server
from tests.server.scripted_engine import ScriptedEngine


def speculation(seconds: float, useful: float, stale: float) -> SpeculationStatistics:
    return SpeculationStatistics(
        windows=10,
        stale_windows=1,
        committed_tokens=25,
        useful_rows=25,
        stale_rows=5,
        drafts=8,
        draft_tokens=16,
        accepted_tokens=12,
        accepted_by_position=(8, 4, 0, 0),
        drafted_by_position=(8, 8, 4, 0),
        windows_by_rows=(1,),
        judged_by_proposer={},
        accepted_by_proposer={},
        useful_in_flight=useful,
        stale_in_flight=stale,
        seconds=seconds,
        seconds_by_depth=(1.0,),
        rows_in_flight=3,
    )


def activity(engine: ScriptedEngine, now: float, generated: int, figures: SpeculationStatistics) -> EngineActivity:
    statistics = msgspec.structs.replace(engine.statistics(), generated_tokens=generated, speculation=figures)
    return EngineActivity(now, statistics, (), ())


def test_a_frame_tells_what_happened_since_the_last(engine: ScriptedEngine) -> None:
    before = activity(engine, 10.0, 100, speculation(4.0, 2.0, 1.0))
    now = activity(engine, 12.0, 150, speculation(6.0, 3.0, 1.0))
    frame = dashboard_frame(engine.ring(), engine.readiness(), before, now, [])
    figures = frame.figures
    assert figures.tokens_per_second == 25.0
    # 3 x 6 s less 2 x 4 s, over the 2 s between.
    assert figures.useful_rows == pytest.approx(5.0)
    assert figures.stale_rows == pytest.approx(1.0)
    assert figures.accepted == (1.0, 0.5)
    assert (figures.prediction_error, figures.guard) == (0.125, "suspended")
    assert figures.tokens_per_traversal == 2.5


def test_trips_lie_on_one_clock() -> None:
    # The stage's clock is 1000 s ahead; both links take 0.5 s.
    found = record(1, 100.0, [(1100.5, 1.0)], 102.0, trips=[1.0])
    (trip,) = trips_of([found], estimate_clocks([found]))
    assert (trip.planned, trip.completed, trip.kind, trip.rows) == (100.0, 102.0, "decode", 1)
    assert trip.work == ((100.5, 101.5),)
    assert trips_of([found], None)[0].work == ()


async def test_the_timeline_holds_the_last_seconds_of_the_newest_ring(engine: ScriptedEngine) -> None:
    def ring_of(stages: int, iteration: int, at: float) -> TraceRecord:
        return record(iteration, at, [(at + 0.1 * stage, 0.05) for stage in range(stages)], at + 0.5)

    engine.records = [ring_of(2, 1, 90.0), ring_of(2, 2, 96.0), ring_of(1, 3, 98.0)]
    watched = DashboardFeed(engine)
    frames = watched.frames()
    frame = msgspec.json.decode(await anext(frames), type=DashboardFrame)
    await watched.close()
    assert frame.now == 100.0
    assert [(trip.planned, len(trip.work)) for trip in frame.trips] == [(96.0, 0), (98.0, 1)]


async def test_viewers_share_one_look_at_the_engine(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "FRAME_SECONDS", 0.02)
    looks = 0
    look = engine.activity

    def counted(moment: float) -> EngineActivity:
        nonlocal looks
        looks += 1
        return look(moment)

    monkeypatch.setattr(engine, "activity", counted)
    watched = DashboardFeed(engine)
    viewers = [watched.frames() for _ in range(3)]
    for _ in range(4):
        frames = await asyncio.gather(*(anext(viewer) for viewer in viewers))
        assert len(set(frames)) == 1
        msgspec.json.decode(frames[0], type=DashboardFrame)
    assert looks <= 6
    for viewer in viewers:
        await viewer.aclose()  # type: ignore[attr-defined]
    await asyncio.sleep(0.1)
    seen = looks
    await asyncio.sleep(0.1)
    assert looks == seen  # nobody watches, so nobody looks
    again = watched.frames()
    await anext(again)
    assert looks == seen + 1
    await watched.close()


def test_the_page_loads_only_what_is_here(client: httpx.Client) -> None:
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    loaded = set(re.findall(r'(?:src|href)="(/dashboard/[^"]+)"', page.text))
    assert loaded <= PAGE_PATHS and "style=" not in page.text and "http" not in page.text
    for name, kind in FILES.items():
        answer = client.get(f"/dashboard/{name}")
        assert answer.status_code == 200 and answer.headers["content-type"].startswith(kind)
        assert "http://" not in answer.text and "https://" not in answer.text
    assert client.get("/dashboard/feed.py").status_code == 404


def test_frames_come_as_events(client: httpx.Client, engine: ScriptedEngine) -> None:
    with client.stream("GET", "/dashboard/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        frames = (line.removeprefix("data: ") for line in response.iter_lines() if line)
        first = json.loads(next(frames))
        engine.now += 1
        second = json.loads(next(frames))
    assert first["model"] == second["model"] == "Tiny-Model"
    assert [stage["index"] for stage in first["ring"]["stages"]] == [0, 1]
    assert [request["state"] for request in first["requests"]] == ["generating", "waiting"]


def test_an_engine_that_fails_is_told_and_watched_on(client: httpx.Client, engine: ScriptedEngine) -> None:
    from longspan.errors import RingError

    engine.fail = RingError("stage 1 was lost")
    with client.stream("GET", "/dashboard/events") as response:
        lines = (line for line in response.iter_lines() if line)
        assert "stage 1 was lost" in next(lines)
        engine.fail = None
        assert any("Tiny-Model" in line for _, line in zip(range(4), lines, strict=False))


def test_the_page_needs_no_key_and_its_frames_do(engine: ScriptedEngine) -> None:
    options = ServerOptions(api_keys=("secret",))
    with running_server(engine, options) as url, httpx.Client(base_url=url, timeout=10) as client:
        assert all(client.get(path).status_code == 200 for path in PAGE_PATHS)
        assert client.get("/dashboard/events").status_code == 401
        with client.stream("GET", "/dashboard/events", headers={"authorization": "Bearer secret"}) as response:
            assert response.status_code == 200


def test_too_many_viewers_are_refused(
    client: httpx.Client, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MOST_VIEWERS", 0)
    response = client.get("/dashboard/events")
    assert response.status_code == 429 and int(response.headers["retry-after"]) > 0


def test_a_viewer_does_not_keep_the_server_from_ending(engine: ScriptedEngine) -> None:
    with httpx.Client(timeout=10) as client:
        with running_server(engine, ServerOptions()) as url:
            stream = client.stream("GET", f"{url}/dashboard/events")
            lines = stream.__enter__().iter_lines()
            next(lines)
            started = time.perf_counter()
        # The grace of the tests' server is one second, after which it would cut the stream off.
        assert time.perf_counter() - started < 0.9
        assert list(lines)[-1] == ""
        stream.__exit__(None, None, None)
