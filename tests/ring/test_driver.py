"""Whole rings over real sockets: the tokens, the order, the credits, and the end."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.errors import ModelError, RingError
from longspan.ring import driver as driver_module
from longspan.ring import stage_session as stage_session_module
from longspan.ring.driver import RingDriver
from longspan.ring.frame import Frame, Kind
from longspan.ring.messages import Assignment, Failed, Ready, encode
from longspan.ring.next_stage import NeighbourError
from longspan.ring.stage_client import StageClient
from longspan.ring.stage_server import StageServer
from longspan.ring.stage_session import StageSession
from longspan.runtime.base import StageRuntime
from longspan.runtime.script import Script, scripted_tokens
from longspan.runtime.scripted import FailSpan, RaiseError
from longspan.sampling.parameters import SamplingParameters
from longspan.schedule.policy import Policy
from longspan.schedule.span import Iteration, IterationResult
from tests.ring.scripted_ring import (
    GREEDY,
    SCRIPT,
    SLOTS,
    Coordinator,
    ScriptedLoader,
    ring_plan,
    stage_servers,
)

RINGS = [(1, False), (1, True), (2, False), (2, True), (3, False), (3, True)]
"""Stages, and whether the coordinator holds the first."""

MIXED = [
    GREEDY,
    SamplingParameters(temperature=0.9, top_p=0.9, seed=11),
    SamplingParameters(temperature=1.2, seed=2**63, repetition_penalty=1.3, presence_penalty=0.5),
]


def truth(
    prompt: Sequence[int], count: int, sampling: SamplingParameters = GREEDY, script: Script = SCRIPT
) -> list[int]:
    return scripted_tokens(script, prompt, count, sampling)


def ports(servers: Sequence[StageServer]) -> list[int]:
    return [server.port for server in servers]


def random_prompts(count: int, seed: int = 0) -> list[list[int]]:
    generator = random.Random(seed)
    shared = [generator.randrange(256) for _ in range(40)]
    prompts = []
    for _ in range(count):
        # Some begin alike, so that slots are copied.
        head = shared[: generator.choice([0, 0, 16, 33, 40])]
        prompts.append(head + [generator.randrange(256) for _ in range(generator.randint(1, 30))])
    return prompts


@pytest.mark.parametrize(("stages", "hold_first"), RINGS)
async def test_every_ring_gives_the_same_tokens(stages: int, hold_first: bool) -> None:
    loaders = [ScriptedLoader() for _ in range(stages)]
    prompts = random_prompts(2 * SLOTS)
    async with (
        stage_servers(*loaders[int(hold_first) :]) as servers,
        Coordinator(ring_plan(ports(servers), hold_first=hold_first), loaders[0]) as coordinator,
    ):
        samplings = [MIXED[index % 3] for index in range(len(prompts))]
        answers = [
            coordinator.submit(prompt, 4 + 2 * index, sampling)
            for index, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True))
        ]
        await coordinator.finish()
        assert not coordinator.failures
        for index, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True)):
            assert answers[index].tokens == truth(prompt, 4 + 2 * index, sampling)
        # Results in the order of the iterations, one each, with every stage's timing in the order of the ring.
        assert [result.iteration for result in coordinator.results] == list(range(len(coordinator.iterations)))
        for result in coordinator.results:
            assert [timing.stage for timing in result.timings] == list(range(stages))
            assert all(timing.received <= timing.started <= timing.finished for timing in result.timings)
        # That the first stage has passed the last one on comes over another link than its result.
        async with asyncio.timeout(5):
            while coordinator.driver.pending:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert coordinator.rooms == (0 if stages == 1 else len(coordinator.iterations))
    assert [loader.open for loader in loaders] == [0] * stages, (
        "nothing is held once a ring and its stages are closed"
    )


@settings(deadline=None, max_examples=8)
@given(data=st.data())
def test_random_plans_cancels_and_late_arrivals(data: st.DataObject) -> None:
    stages, hold_first = data.draw(st.sampled_from(RINGS))
    prompts = random_prompts(data.draw(st.integers(1, 10)), data.draw(st.integers(0, 5)))
    counts = [data.draw(st.integers(1, 24)) for _ in prompts]
    cancelled = {index: data.draw(st.integers(0, 40)) for index in range(len(prompts)) if data.draw(st.booleans())}
    backlog, lanes = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    reuse = data.draw(st.booleans())

    async def run() -> None:
        loaders = [ScriptedLoader(exact_rows=data.draw(st.sampled_from([3, 9, 32]))) for _ in range(stages)]
        policy = Policy(lanes=lanes, prefix_reuse=reuse)
        async with (
            stage_servers(*loaders[int(hold_first) :]) as servers,
            Coordinator(
                ring_plan(ports(servers), hold_first=hold_first),
                loaders[0],
                policy=policy,
                backlog=backlog,
                chunk=2,
            ) as coordinator,
        ):
            late = list(zip(prompts, counts, strict=True))
            taken = len(late) // 2
            answers = [coordinator.submit(prompt, count) for prompt, count in late[:taken]]

            def after(result: IterationResult) -> None:
                if taken + result.iteration < len(late) + 3 and len(answers) < len(late):
                    answers.append(coordinator.submit(*late[len(answers)]))
                for index, when in cancelled.items():
                    if when == result.iteration and index < len(answers) and not answers[index].ended:
                        coordinator.planner.cancel(index, 0.0)
                        answers[index].ended = "cancelled"

            coordinator.after_result = after
            while len(answers) < len(late) and not coordinator.iterations:
                answers.append(coordinator.submit(*late[len(answers)]))
            await coordinator.finish()
            while len(answers) < len(late):
                answers.append(coordinator.submit(*late[len(answers)]))
                await coordinator.finish()
            for answer, (prompt, count) in zip(answers, late, strict=True):
                expected = truth(prompt, count)
                assert answer.tokens == (
                    expected[: len(answer.tokens)] if answer.ended == "cancelled" else expected
                )

    asyncio.run(run())


@pytest.mark.parametrize("dtype", ["float32", "float16"])
async def test_activations_travel_in_the_type_that_was_asked(dtype: str) -> None:
    loaders = [ScriptedLoader() for _ in range(2)]
    async with (
        stage_servers(*loaders) as servers,
        Coordinator(ring_plan(ports(servers), dtype=dtype), loaders[0]) as coordinator,
    ):
        answer = coordinator.submit([1, 2, 3], 8)
        await coordinator.finish()
    assert answer.tokens == truth([1, 2, 3], 8)
    assert [loader.loads[0].dtype for loader in loaders] == [dtype, dtype]


async def test_the_ring_holds_what_its_smallest_stage_holds() -> None:
    loaders = [ScriptedLoader(max_rows=50, exact_rows=20), ScriptedLoader(max_rows=40, exact_rows=30)]
    async with (
        stage_servers(*loaders) as servers,
        Coordinator(ring_plan(ports(servers), slots=3, cells=99), loaders[0]) as coordinator,
    ):
        assert coordinator.capacity is not None
        assert (coordinator.capacity.slots, coordinator.capacity.cells_per_slot) == (3, 99)
        assert (coordinator.capacity.max_rows, coordinator.capacity.exact_rows) == (40, 20)


async def test_the_link_is_as_long_as_it_pretends() -> None:
    """Coordinator → stage 0 → stage 1 → coordinator, 20 ms each: three delays for one token."""
    loaders = [ScriptedLoader() for _ in range(2)]
    async with (
        stage_servers(*loaders) as servers,
        Coordinator(ring_plan(ports(servers), delay_ms=20.0), loaders[0]) as coordinator,
    ):
        loop = asyncio.get_running_loop()
        started = loop.time()
        answer = coordinator.submit([1, 2, 3], 4)
        await coordinator.finish()
        took = loop.time() - started
    assert answer.tokens == truth([1, 2, 3], 4)
    assert 4 * 0.06 <= took < 4 * 0.06 + 1.0


async def test_iterations_overlap_on_a_long_link() -> None:
    """Several requests on two lanes take less time than one after the other."""
    loaders = [ScriptedLoader() for _ in range(2)]
    async with (
        stage_servers(*loaders) as servers,
        Coordinator(
            ring_plan(ports(servers), delay_ms=20.0),
            loaders[0],
            backlog=4,
            policy=Policy(lanes=4, prefix_reuse=False),
        ) as coordinator,
    ):
        loop = asyncio.get_running_loop()
        started = loop.time()
        answers = [coordinator.submit([index, 2, 3], 5) for index in range(4)]
        most = 0

        def after(_result: IterationResult) -> None:
            nonlocal most
            most = max(most, coordinator.planner.in_flight)

        coordinator.after_result = after
        await coordinator.finish()
        took = loop.time() - started
    assert [answer.tokens for answer in answers] == [truth([index, 2, 3], 5) for index in range(4)]
    assert most >= 2
    assert took < 0.8 * 4 * 5 * 0.06


async def test_statuses_say_what_every_stage_is() -> None:
    loaders = [ScriptedLoader() for _ in range(3)]
    async with stage_servers(*loaders[1:]) as servers:
        plan = ring_plan(ports(servers), hold_first=True)
        coordinator = Coordinator(plan, loaders[0])
        assert [status.state for status in coordinator.driver.statuses()] == ["loading", "missing", "missing"]
        async with coordinator:
            coordinator.submit([1], 2)
            await coordinator.finish()
            await asyncio.sleep(0)
            for client in coordinator.driver._clients:
                client.ping()
            await asyncio.sleep(0.05)
            statuses = coordinator.driver.statuses()
            assert [(status.index, status.start, status.end) for status in statuses] == [
                (0, 0, 2),
                (1, 2, 4),
                (2, 4, 6),
            ]
            assert [status.state for status in statuses] == ["ready"] * 3
            assert statuses[0].address == "in this process"
            assert statuses[1].address == f"127.0.0.1:{servers[0].port}"
            assert all(status.slots == SLOTS and status.exact_rows == 32 for status in statuses)
            assert all(status.compute_ms is not None and status.compute_ms >= 0 for status in statuses)
            assert all(status.round_trip_ms is not None and status.memory_bytes for status in statuses[1:])
        assert any("stage 1: loading layers 2-4" in line for line in coordinator.progress)
        assert any("stage 0: thinking" in line for line in coordinator.progress)


# ------------------------------------------------------------------------------------------------------ forming


@pytest.mark.parametrize("lost", [0, 1, 2])
async def test_a_stage_that_cannot_be_reached_is_named(lost: int) -> None:
    loaders = [ScriptedLoader() for _ in range(3)]
    async with stage_servers(*loaders) as servers:
        await servers[lost].close()
        plan = ring_plan(ports(servers))
        coordinator = Coordinator(plan, loaders[0])
        place = plan.places[lost]
        name = rf"stage {lost} \(layers {place.start}-{place.end}, 127.0.0.1:{servers[lost].port}\): cannot reach"
        with pytest.raises(RingError, match=name):
            await coordinator.driver.form()
        assert coordinator.driver.statuses()[lost].state == "missing"
        # The others listen again at once.
        others = [server for server in servers if server is not servers[lost]]
        async with Coordinator(ring_plan(ports(others), ring="next"), loaders[0]) as smaller:
            answer = smaller.submit([1], 3)
            await smaller.finish()
            assert answer.tokens == truth([1], 3)


async def test_a_stage_of_another_model_is_named() -> None:
    loaders = [ScriptedLoader(), ScriptedLoader(digest="77" * 32)]
    async with stage_servers(*loaders) as servers:
        coordinator = Coordinator(ring_plan(ports(servers)), loaders[0])
        with pytest.raises(RingError, match=r"stage 1 .*model mismatch.*7777777777"):
            await coordinator.driver.form()


async def test_a_stage_that_fails_to_load_is_named() -> None:
    loaders = [ScriptedLoader(), ScriptedLoader(load_error=ModelError("the weights are made of cheese"))]
    async with stage_servers(*loaders) as servers:
        coordinator = Coordinator(ring_plan(ports(servers)), loaders[0])
        with pytest.raises(RingError, match=r"stage 1 \(layers 3-6, .*\): the weights are made of cheese"):
            await coordinator.driver.form()
        assert coordinator.driver.statuses()[1].state == "failed"


async def test_a_first_stage_here_that_fails_to_load() -> None:
    loaders = [ScriptedLoader(load_error=ModelError("the weights are made of cheese")), ScriptedLoader()]
    async with stage_servers(loaders[1]) as servers:
        coordinator = Coordinator(ring_plan(ports(servers), hold_first=True), loaders[0])
        with pytest.raises(ModelError, match="made of cheese"):
            await coordinator.driver.form()


async def test_a_first_stage_here_is_released_when_the_ring_does_not_form() -> None:
    """However often that happens, and whether or not it had been loaded by then."""
    loader = ScriptedLoader()
    for _ in range(5):
        coordinator = Coordinator(ring_plan([1], hold_first=True), loader)
        with pytest.raises(RingError, match=r"cannot reach 127.0.0.1:1"):
            await coordinator.driver.form()
    assert loader.open == 0


async def test_whoever_loses_patience_with_closing_leaves_nothing_half_closed() -> None:
    """Cancelled while a slow disk keeps the first stage loading; it is released when that is over."""
    loader, loading, go_on = ScriptedLoader(), threading.Event(), threading.Event()
    make = loader.make

    def slowly(assignment: Assignment) -> StageRuntime:
        loading.set()
        go_on.wait(20)
        return make(assignment)

    loader.make = slowly
    driver = Coordinator(ring_plan([], hold_first=True), loader).driver
    forming = asyncio.create_task(driver.form())
    await asyncio.to_thread(loading.wait, 20)
    for _ in range(3):
        forming.cancel()
        await asyncio.sleep(0.01)
    assert forming.cancelled()
    go_on.set()
    await driver.close()
    assert (len(loader.loads), loader.open) == (1, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"slots": SLOTS + 1},
        {"slots": 0},
        {"cells_per_slot": 1},
        {"cells_per_slot": 2**60},
        {"max_rows": 0},
        {"max_rows": 2**40},
        {"exact_rows": 1},
        {"exact_rows": 2**40},
    ],
)
async def test_a_stage_that_announces_an_impossible_capacity_is_refused(
    changes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = StageSession.__init__

    def init(self: StageSession, *arguments: object) -> None:
        original(self, *arguments)  # type: ignore[arg-type]
        put = self._outgoing.put

        def altered(frame: Frame) -> None:
            if frame.kind is Kind.READY:
                ready = msgspec.msgpack.decode(frame.header, type=Ready)
                frame = encode(msgspec.structs.replace(ready, **changes))
            put(frame)

        monkeypatch.setattr(self._outgoing, "put", altered)

    monkeypatch.setattr(StageSession, "__init__", init)
    loader = ScriptedLoader()
    async with stage_servers(loader) as servers:
        coordinator = Coordinator(ring_plan(ports(servers)), loader)
        with pytest.raises(RingError, match=r"stage 0 .*impossible capacity for 4 slots of 256 positions"):
            await coordinator.driver.form()


# ---------------------------------------------------------------------------------------------------- the end


@pytest.mark.parametrize("hold_first", [False, True])
@pytest.mark.parametrize("lost", [0, 1, 2])
async def test_a_stage_lost_in_the_middle_is_named_once(lost: int, hold_first: bool) -> None:
    if hold_first and lost == 0:
        pytest.skip("the coordinator cannot lose itself")
    loaders = [ScriptedLoader(seconds=0.002) for _ in range(3)]
    async with stage_servers(*loaders[int(hold_first) :]) as servers:
        plan = ring_plan(ports(servers), hold_first=hold_first)
        async with Coordinator(plan, loaders[0]) as coordinator:
            answers = [coordinator.submit(prompt, 200) for prompt in random_prompts(4)]
            await coordinator.results_reach(20)
            server = servers[lost - int(hold_first)]
            # As when the process is killed: every connection ends at once, and no word is said.
            await _cut(server)
            reason = await coordinator.failure(5)
            came = len(coordinator.results)
            place = plan.places[lost]
            assert reason.startswith(
                f"stage {lost} (layers {place.start}-{place.end}, 127.0.0.1:{server.port}) was lost"
            )
            assert coordinator.driver.statuses()[lost].state == "failed"
            assert [status.state for status in coordinator.driver.statuses()].count("ready") == 2
            await asyncio.sleep(0.3)
            assert len(coordinator.failures) == 1
            assert len(coordinator.results) == came, "nothing comes after the end"
        for answer, prompt in zip(answers, random_prompts(4), strict=True):
            assert answer.tokens == truth(prompt, len(answer.tokens))


async def _cut(server: StageServer) -> None:
    session = server._session
    assert session is not None
    session._control_raw.abort()
    if session._next is not None:
        session._next.abort()  # type: ignore[attr-defined]
    await server.close()


async def test_the_whole_ring_goes_back_to_listening_after_a_loss() -> None:
    loaders = [ScriptedLoader() for _ in range(2)]
    loaders[1].make = ScriptedLoader(faults=[RaiseError(3)]).make
    async with stage_servers(*loaders) as servers:
        async with Coordinator(ring_plan(ports(servers)), loaders[0]) as coordinator:
            coordinator.submit([1, 2, 3], 20)
            reason = await coordinator.failure()
            assert reason.startswith("stage 1 (layers 3-6, ")
            assert "failed: RuntimeError: scripted fault" in reason
        loaders[1].make = ScriptedLoader().make
        async with Coordinator(ring_plan(ports(servers), ring="again"), loaders[0]) as coordinator:
            answer = coordinator.submit([1, 2, 3], 20)
            await coordinator.finish()
            assert answer.tokens == truth([1, 2, 3], 20)
    assert len(loaders[0].loads) == 1, "the stage that did not fail keeps its layers"
    assert len(loaders[1].loads) == 2


@pytest.mark.parametrize("stages", [1, 2])
async def test_a_first_stage_here_that_breaks_ends_the_ring(stages: int) -> None:
    loaders = [ScriptedLoader(faults=[RaiseError(2, OSError("out of luck"))]), ScriptedLoader()]
    async with (
        stage_servers(*loaders[1:stages]) as servers,
        Coordinator(ring_plan(ports(servers), hold_first=True), loaders[0]) as coordinator,
    ):
        coordinator.submit([1, 2, 3], 20)
        reason = await coordinator.failure()
        assert "stage 0 (layers 0-" in reason
        assert "in this process) failed: OSError: out of luck" in reason
        assert coordinator.driver.statuses()[0].state == "failed"
    assert loaders[0].open == 0


@pytest.mark.parametrize("hold_first", [False, True])
@pytest.mark.parametrize("at", [0, 1])
async def test_a_span_that_fails_on_one_stage_fails_its_sequence_only(at: int, hold_first: bool) -> None:
    faults = [FailSpan(2, sequence=1, reason="a cosmic ray")]
    loaders = [ScriptedLoader(faults=faults if stage == at else ()) for stage in range(2)]
    prompts = random_prompts(4)
    async with (
        stage_servers(*loaders[int(hold_first) :]) as servers,
        Coordinator(ring_plan(ports(servers), hold_first=hold_first), loaders[0]) as coordinator,
    ):
        answers = [coordinator.submit(prompt, 20) for prompt in prompts]
        await coordinator.finish()
        # The slot is clean again for the next.
        again = coordinator.submit(prompts[1], 20)
        await coordinator.finish()
    assert not coordinator.failures
    assert answers[1].ended == "a cosmic ray"
    assert answers[1].tokens == truth(prompts[1], len(answers[1].tokens))
    for index in (0, 2, 3):
        assert answers[index].tokens == truth(prompts[index], 20)
    assert again.tokens == truth(prompts[1], 20)


async def test_a_frame_that_nobody_expects_ends_the_ring() -> None:
    loader = ScriptedLoader()
    async with stage_servers(loader) as (server,), Coordinator(ring_plan([server.port]), loader) as coordinator:
        assert server._session is not None
        await server._session._control.send(Frame(Kind.WELCOME, b""))
        assert "was lost: unexpected WELCOME frame" in await coordinator.failure()


async def test_a_neighbours_word_waits_for_the_stages_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stage 0 sees only that its link to stage 1 is gone; stage 1 itself knows why."""
    monkeypatch.setattr(driver_module, "WITNESS_SECONDS", 0.1)
    loaders = [ScriptedLoader() for _ in range(2)]
    async with stage_servers(*loaders) as servers:
        for own_word in (True, False):
            plan = ring_plan(ports(servers), ring=str(own_word))
            async with Coordinator(plan, loaders[0]) as coordinator:
                sessions = [server._session for server in servers]
                assert sessions[0] is not None
                assert sessions[1] is not None
                await sessions[0]._control_raw.send(encode(Failed(1, "its link has ended")))
                if own_word:
                    await asyncio.sleep(0.03)
                    await sessions[1]._control_raw.send(encode(Failed(1, "out of memory")))
                reason = await coordinator.failure()
            expected = "failed: out of memory" if own_word else "was lost: its link has ended"
            assert reason == f"stage 1 (layers 3-6, 127.0.0.1:{servers[1].port}) {expected}"


async def test_who_reports_a_loss_is_not_taken_for_the_lost_one() -> None:
    """It closes its links right after its report, and the coordinator may be writing to it in that moment."""
    loaders = [ScriptedLoader() for _ in range(3)]
    async with stage_servers(*loaders) as servers:
        for witness, lost in ((0, 1), (2, 1), (1, 2)):
            plan = ring_plan(ports(servers), ring=f"{witness}{lost}")
            async with Coordinator(plan, loaders[0]) as coordinator:
                coordinator.submit([1, 2, 3], 200)
                await coordinator.results_reach(3)
                session = servers[witness]._session
                assert session is not None
                if lost > witness:
                    session._end(session._following.lost(RingError("cable cut")))
                else:
                    session._end(NeighbourError(lost, "cable cut"))
                reason = await coordinator.failure()
                assert reason.startswith(f"stage {lost} (layers {2 * lost}-{2 * lost + 2}, ")
                assert "cable cut" in reason
                assert coordinator.driver.statuses()[lost].state == "failed"
                await coordinator.driver.close()
            for server in servers:
                while server._session is not None:
                    await server._session_change()


async def test_a_bug_in_the_planner_does_not_leave_requests_waiting() -> None:
    loader = ScriptedLoader()
    async with stage_servers(loader) as (server,), Coordinator(ring_plan([server.port]), loader) as coordinator:

        def broken(_result: IterationResult) -> None:
            raise ZeroDivisionError("oops")

        coordinator.after_result = broken
        coordinator.submit([1], 5)
        assert "could not be handled: ZeroDivisionError: oops" in await coordinator.failure()


async def test_closing_in_the_middle_is_quiet() -> None:
    loaders = [ScriptedLoader(seconds=0.01) for _ in range(2)]
    async with stage_servers(loaders[1]) as servers:
        async with Coordinator(ring_plan(ports(servers), hold_first=True), loaders[0]) as coordinator:
            coordinator.submit([1, 2, 3], 50)
            await asyncio.sleep(0.05)
            await coordinator.driver.close()
            came = len(coordinator.results)
            await coordinator.driver.close()
            await asyncio.sleep(0.05)
        assert not coordinator.failures
        assert len(coordinator.results) == came
    assert [loader.open for loader in loaders] == [0, 0]


async def test_a_first_stage_that_does_not_pass_on_gets_no_more_than_the_backlog() -> None:
    """A slow second stage must not fill memory with iterations on the way to it."""
    loaders = [ScriptedLoader(), ScriptedLoader(seconds=0.02)]
    async with (
        stage_servers(loaders[1]) as servers,
        Coordinator(ring_plan(ports(servers), hold_first=True), loaders[0], backlog=1) as coordinator,
    ):
        clients = coordinator.driver._clients
        block = asyncio.Event()
        send = clients[0].link.send

        async def held(frame: Frame) -> None:
            await block.wait()
            await send(frame)

        clients[0].link.send = held  # type: ignore[method-assign]
        at_once = clients[0].link.send_at_once
        clients[0].link.send_at_once = lambda frame: block.is_set() and at_once(frame)  # type: ignore[method-assign]
        answers = [coordinator.submit([index, *range(200)], 2, cache_salt=str(index)) for index in range(3)]
        await asyncio.sleep(0.1)
        assert len(coordinator.iterations) == 1
        assert coordinator.driver.pending == 1
        block.set()
        await coordinator.finish()
    assert [answer.ended for answer in answers] == ["length"] * 3


async def test_pings_measure_and_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "PING_SECONDS", 0.01)
    loader = ScriptedLoader()
    async with (
        stage_servers(loader) as (server,),
        Coordinator(ring_plan([server.port], delay_ms=15.0), loader) as coordinator,
    ):
        await asyncio.sleep(0.3)
        (client,) = coordinator.driver._clients
        round_trip = client.link.statistics.round_trip
        assert round_trip is not None
        assert 0.03 <= round_trip < 0.15
        monkeypatch.setattr(StageClient, "receive", asyncio.sleep)
        for _ in range(200):
            client.ping()
        assert len(client._pings) <= 64
        assert client.silence() > 0
    client.ping()  # a lost link is noticed elsewhere


async def test_a_link_that_has_become_slower_is_shown_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(driver_module, "PING_SECONDS", 0.01)
    loader = ScriptedLoader()
    async with (
        stage_servers(loader) as (server,),
        Coordinator(ring_plan([server.port]), loader) as coordinator,
    ):
        (client,) = coordinator.driver._clients
        await asyncio.sleep(0.2)
        assert coordinator.driver.statuses()[0].detail == ""
        at_once, loop = client.link.send_at_once, asyncio.get_running_loop()

        def late(frame: Frame) -> bool:
            loop.call_later(0.1, at_once, frame)
            return True

        monkeypatch.setattr(client.link, "send_at_once", late)
        async with asyncio.timeout(10):
            while not coordinator.driver.statuses()[0].detail:  # noqa: ASYNC110 - pings have to come back
                await asyncio.sleep(0.02)
        (stage,) = coordinator.driver.statuses()
        assert stage.state == "ready"
        assert "ms when the ring formed" in stage.detail
        assert caplog.text.count("ms when the ring formed") == 1
        given = coordinator.submit([5, 6, 7], 6)
        await coordinator.finish()
        assert not coordinator.failures
        assert given.tokens == truth([5, 6, 7], 6)


async def test_a_stage_that_answers_no_ping_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "PING_SECONDS", 0.02)
    monkeypatch.setattr(driver_module, "SILENCE_SECONDS", 0.3)
    loaders = [ScriptedLoader() for _ in range(2)]
    failures: list[RingError] = []
    async with stage_servers(*loaders) as servers:
        driver = RingDriver(
            ring_plan(ports(servers)),
            loaders[0],
            on_result=lambda result: None,
            on_room=lambda: None,
            on_failure=failures.append,
            on_progress=lambda text: None,
        )
        await driver.form()
        try:
            await asyncio.sleep(0.5)
            assert not failures, "pings are answered"
            assert driver.mute == frozenset()
            monkeypatch.setattr(driver._clients[1].link, "send_at_once", lambda frame: True)
            await asyncio.sleep(0.5)
            assert "stage 1" in str(failures[0])
            assert "has not answered for 0.3 s" in str(failures[0])
            assert driver.mute == {1}
        finally:
            await driver.close()


async def test_a_link_too_busy_for_pings_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever comes from a stage is a sign of life."""
    monkeypatch.setattr(driver_module, "PING_SECONDS", 0.02)
    monkeypatch.setattr(driver_module, "SILENCE_SECONDS", 0.5)
    monkeypatch.setattr(StageClient, "ping", lambda client: client._pings.setdefault(0, time.perf_counter()))
    loader = ScriptedLoader()
    failures: list[RingError] = []
    async with stage_servers(loader) as (server,):
        driver = RingDriver(
            ring_plan([server.port]),
            loader,
            on_result=lambda result: None,
            on_room=lambda: None,
            on_failure=failures.append,
            on_progress=lambda text: None,
        )
        await driver.form()
        try:
            for number in range(10):
                driver.send(Iteration(number, (), (), ()), np.zeros((0, loader.width), np.float32))
                await asyncio.sleep(0.1)
            assert not failures
            await asyncio.sleep(0.8)
            assert "has not answered" in str(failures[0])
        finally:
            await driver.close()


async def test_nothing_coming_back_ends_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "PING_SECONDS", 0.02)
    monkeypatch.setattr("longspan.ring.patience.STUCK_SECONDS", 0.2)
    loader = ScriptedLoader()
    async with (
        stage_servers(loader) as (server,),
        Coordinator(ring_plan([server.port]), loader) as coordinator,
    ):
        await asyncio.sleep(0.4)
        assert not coordinator.driver._over, "nothing was sent"
        monkeypatch.setattr(coordinator.driver._clients[0].link, "send_at_once", lambda frame: True)
        coordinator.driver.send(Iteration(0, (), (), ()), np.zeros((0, loader.width), np.float32))
        await asyncio.sleep(0.5)
        assert coordinator.driver._over


async def test_a_coordinator_that_falls_silent_leaves_the_stage_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver_module, "PING_SECONDS", 0.05)
    monkeypatch.setattr(stage_session_module, "SILENCE_SECONDS", 0.3)
    loader = ScriptedLoader()
    async with stage_servers(loader) as (server,), Coordinator(ring_plan([server.port]), loader) as coordinator:
        await asyncio.sleep(0.5)
        assert _serves(server)
        monkeypatch.setattr(StageClient, "ping", lambda client: None)
        await asyncio.sleep(0.8)
        assert not _serves(server)
        assert coordinator.driver._over


async def test_an_iteration_of_operations_only_goes_round() -> None:
    loaders = [ScriptedLoader() for _ in range(2)]
    found: asyncio.Future[IterationResult] = asyncio.get_running_loop().create_future()
    async with stage_servers(*loaders) as servers:
        driver = RingDriver(
            ring_plan(ports(servers)),
            loaders[0],
            on_result=found.set_result,
            on_room=lambda: None,
            on_failure=lambda error: pytest.fail(str(error)),
            on_progress=lambda text: None,
        )
        await driver.form()
        driver.send(Iteration(5, (), (), ()), np.empty((0, loaders[0].width), np.float32))
        result = await asyncio.wait_for(found, 5)
        await driver.close()
    assert result.iteration == 5


def _serves(server: StageServer) -> bool:
    return server._session is not None
