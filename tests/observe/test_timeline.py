"""Timelines: overlap against brute force, clocks against planted ones, a real ring's trace."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.cli.main import main
from longspan.engine import Engine, EngineOptions
from longspan.errors import UsageError
from longspan.observe.chrome_trace import chrome_trace
from longspan.observe.intervals import common, length, merged, seconds_by_count
from longspan.observe.otlp import otlp_trace
from longspan.observe.timeline import timeline
from longspan.observe.timeline_figures import timeline_figures
from longspan.request import GenerationRequest
from longspan.schedule.clocks import estimate_clocks
from longspan.schedule.span import Phase
from longspan.schedule.trace import SpanShape, StageTime, TraceRecord, encode_trace
from tests.tiny_models import write_tiny_model

TICKS = 40
Track = list[tuple[int, int]]
tracks = st.lists(
    st.lists(st.tuples(st.integers(0, TICKS), st.integers(0, TICKS)), max_size=6), min_size=1, max_size=4
)


def covered(track: Track, tick: int) -> bool:
    return any(begin <= tick < end for begin, end in track)


@given(tracks, st.lists(st.tuples(st.integers(0, TICKS), st.integers(0, TICKS)), max_size=4))
def test_overlap_equals_counting_tick_by_tick(found: list[Track], window: Track) -> None:
    counted = [0.0] * (len(found) + 1)
    for tick in range(TICKS):
        if covered(window, tick):
            counted[sum(covered(track, tick) for track in found)] += 1
    assert seconds_by_count(found, merged(window)) == pytest.approx(counted)
    assert sum(counted) == pytest.approx(length(merged(window)))
    both = sum(covered(found[0], tick) and covered(window, tick) for tick in range(TICKS))
    assert common(found[0], window) == pytest.approx(both)


def record(
    iteration: int, planned: float, stages: Sequence[tuple[float, float]], completed: float, **more: object
) -> TraceRecord:
    """An iteration. stages: when each received it, and for how long it worked, by its own clock."""
    spans = more.pop("spans", (SpanShape(0, 0, iteration, 1, Phase.DECODE, 1),))
    trips = more.pop("trips", [None] * len(stages))
    return TraceRecord(
        iteration=iteration,
        planned_at=planned,
        completed_at=completed,
        spans=spans,  # type: ignore[arg-type]
        operations=0,
        copied=0,
        predicted={},
        decode_seconds=0.0,
        allowance=0.0,
        guard="open",
        running=1,
        waiting=0,
        samples=1,
        failures=0,
        stages=tuple(
            StageTime(index, 0.0, worked, 0.0, 1, received, trip)
            for index, ((received, worked), trip) in enumerate(zip(stages, trips, strict=True))  # type: ignore[call-overload]
        ),
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("near", [False, True])
def test_planted_clocks_are_found(near: bool) -> None:
    """near: the first stage is in the coordinator's process, and has its clock."""
    generator = random.Random(5)
    delays = (0.0 if near else 0.030, 0.020, 0.050)
    offsets = (0.0 if near else 1000.0, -77.0)
    trips = (None if near else 2 * delays[0], 2 * delays[2])
    records = []
    for iteration in range(50):
        at = planned = float(iteration)
        stages = []
        for stage in (0, 1):
            # Frames are late by chance, but some are not.
            at += delays[stage] + generator.choice([0.0, 0.0, 0.010, 0.040])
            stages.append((at + offsets[stage], 0.004))
            at += 0.004
        records.append(record(iteration, planned, stages, at + delays[2], trips=trips))
    clocks = estimate_clocks(records)
    assert clocks is not None
    assert clocks.offsets == pytest.approx(offsets, abs=1e-6)
    assert clocks.delays == pytest.approx(delays, abs=1e-6)
    assert clocks.uncertainty == 0.0


def test_figures_of_two_overlapping_trips() -> None:
    # Links take 1 s each, and stage 0 works for 2 s, stage 1 for 1 s; the second trip begins 2 s after the first.
    trips = (None, 2.0)
    shape = (SpanShape(0, 0, 5, 4, Phase.VERIFY, 4),)
    records = [
        record(0, 0.0, [(0.0, 2.0), (3.0, 1.0)], 5.0, trips=trips, spans=shape, useful=3, stale=1),
        record(1, 2.0, [(2.0, 2.0), (5.0, 1.0)], 7.0, trips=trips, spans=shape, useful=0, stale=4),
    ]
    figures = timeline_figures(timeline(records))
    assert figures.active_seconds == pytest.approx(7.0)
    # Stage 0 computes 0-4, stage 1 3-4 and 5-6; so both 3-4, nobody 4-5 and 6-7.
    assert [stage.busy for stage in figures.stages] == pytest.approx([4 / 7, 2 / 7])
    assert figures.computing == pytest.approx((2 / 7, 4 / 7, 1 / 7))
    assert figures.exposed_wait == pytest.approx(2 / 7)
    assert figures.several_computing == pytest.approx(1 / 7)
    # On links: 2-3 and 4-5, 4-5 and 6-7; hidden are 2-3 only.
    assert figures.propagation_seconds == pytest.approx(4.0)
    assert figures.propagation_hidden == pytest.approx(1 / 4)
    assert figures.in_flight == pytest.approx(10 / 7)
    # One window in flight 0-2 and 5-7, two 2-5.
    assert figures.seconds_by_depth == pytest.approx((4.0, 3.0))
    assert figures.depth == pytest.approx((4 + 6) / 7)
    assert (figures.useful_rows, figures.stale_rows) == (3, 5)


def check_sums(file: Path) -> dict[str, object]:
    """The figures of a trace file by the command; shares sum as they must."""
    figures: dict[str, object] = json.loads(file.read_bytes())
    computing = figures["computing"]
    assert isinstance(computing, list)
    assert sum(computing) == pytest.approx(1.0)
    busy = sum(stage["busy"] for stage in figures["stages"])  # type: ignore[attr-defined]
    assert sum(count * share for count, share in enumerate(computing)) == pytest.approx(busy)
    return figures


async def traced(model: Path, trace: Path, *, stages: int, delay: float) -> None:
    options = EngineOptions(
        str(model), stages=stages, threads=1, slots=2, context=128, link_delay_ms=delay, trace=str(trace)
    )
    engine = Engine(options)
    await engine.start()
    try:
        async for _ in engine.submit(GenerationRequest(tuple(range(5, 25)), 24, ignore_eos=True)):
            pass
        activity = engine.activity(0.0)
        assert len(activity.iterations) == activity.statistics.iterations
        assert engine.activity(activity.iterations[-1].completed_at).iterations == ()
        assert activity.requests == ()
    finally:
        await engine.stop()


async def test_the_trace_of_a_ring_far_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf", "llama")
    trace = tmp_path / "trace.jsonl"
    await traced(model, trace, stages=2, delay=30.0)
    perfetto, picture = tmp_path / "perfetto.json", tmp_path / "trace.png"
    files = ["--perfetto", str(perfetto), "--picture", str(picture), "--otlp", str(tmp_path / "otlp.json")]
    assert main(["trace", "report", str(trace), *files, "--json"]) == 0
    out = tmp_path / "figures.json"
    out.write_text(capsys.readouterr().out, encoding="utf-8")
    figures = check_sums(out)
    assert figures["useful_rows"] == 23  # the first token came with the prompt
    delays = figures["delays_ms"]
    assert isinstance(delays, list)
    assert sum(delays) == pytest.approx(60.0, abs=20.0)  # stage 0 is beside the coordinator
    # All processes of this machine share a clock, which the estimate does not know.
    assert all(abs(stage["offset_ms"]) < 25 for stage in figures["stages"])  # type: ignore[attr-defined]
    assert picture.read_bytes().startswith(b"\x89PNG")
    check_perfetto(perfetto.read_bytes(), stages=2)
    assert json.loads((tmp_path / "otlp.json").read_bytes())["resourceSpans"]
    assert main(["trace", "report", str(trace)]) == 0
    page = capsys.readouterr().out
    assert "exposed wait" in page and max(map(len, page.splitlines())) <= 100


def check_perfetto(document: bytes, *, stages: int) -> None:
    """The rules of the trace event format, as far as they are used."""
    events = json.loads(document)["traceEvents"]
    open_windows: dict[tuple[str, int], int] = {}
    flows: dict[int, list[str]] = {}
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times) and times[0] >= 0
    for event in events:
        assert {"ph", "pid", "tid", "name"} <= set(event)
        if event["ph"] == "X":
            assert event["dur"] >= 0
        elif event["ph"] in "be":
            key = (event["id"], event["tid"])
            open_windows[key] = open_windows.get(key, 0) + (1 if event["ph"] == "b" else -1)
            assert open_windows[key] >= 0
        elif event["ph"] in "stf":
            flows.setdefault(event["id"], []).append(event["ph"])
    assert not any(open_windows.values())
    assert all(steps == ["s", *["t"] * (stages - 2), "f"] for steps in flows.values())
    assert {event["args"]["name"] for event in events if event["ph"] == "M"} >= {"ring", "stage 0", "stage 1"}


def test_traces_that_say_too_little_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no iterations"):
        timeline([])
    old = record(0, 0.0, [(0.0, 1.0)], 1.0)
    old = TraceRecord(
        **{
            **{name: getattr(old, name) for name in old.__struct_fields__},
            "stages": (StageTime(0, 0.0, 1.0, 0.0, 1),),
        }
    )
    path = tmp_path / "old.jsonl"
    path.write_bytes(encode_trace([old]))
    assert main(["trace", "report", str(path)]) == 2
    with pytest.raises(UsageError, match="record it again"):
        timeline([old])


def test_otlp_spans_of_two_stages() -> None:
    found = timeline([record(3, 10.0, [(10.5, 1.0), (12.0, 0.25)], 13.0, useful=1)])
    (resource,) = json.loads(otlp_trace(found, ended=1_700_000_013.0))["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    root, *stages = scope["spans"]
    assert (root["startTimeUnixNano"], root["endTimeUnixNano"]) == ("1700000010000000000", "1700000013000000000")
    assert "parentSpanId" not in root and len(root["traceId"]) == 32
    assert {stage["parentSpanId"] for stage in stages} == {root["spanId"]}
    assert len({span["spanId"] for span in scope["spans"]}) == 3
    seconds = [(int(stage["endTimeUnixNano"]) - int(stage["startTimeUnixNano"])) / 1e9 for stage in stages]
    assert seconds == pytest.approx([1.0, 0.25])
    facts = {entry["key"]: entry["value"] for entry in root["attributes"]}
    assert facts["longspan.iteration"] == {"intValue": "3"} and facts["longspan.useful_rows"] == {"intValue": "1"}


def test_a_chrome_trace_of_one_trip() -> None:
    document = json.loads(chrome_trace(timeline([record(3, 10.0, [(10.5, 1.0)], 12.0)])))
    (compute,) = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert (compute["name"], compute["dur"], compute["args"]["iteration"]) == ("decode 1", 1e6, 3)
