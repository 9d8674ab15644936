"""Engines over rings whose stages answer from a script: the tokens are known, everything else is real."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import threading
import time
from typing import Any

import msgspec
import pytest

from longspan.engine import Engine, RequestStream
from longspan.errors import (
    ContextLengthError,
    QueueFullError,
    RequestError,
    RequestTimeoutError,
    RingError,
)
from longspan.request import GenerationRequest
from longspan.runtime.base import StageOutput
from longspan.runtime.script import Script, scripted_tokens
from longspan.runtime.scripted import FailSpan
from longspan.sampling.parameters import SamplingParameters
from longspan.schedule.span import Iteration
from tests.engine.answers import Answer, first, random_requests, request, rest, until, whole
from tests.engine.conftest import Scripted
from tests.ring.scripted_ring import ScriptedLoader
from tests.tiny_models import END_TOKEN

PROMPT = [40, 41, 42, 80, 90, 7, 200, 3]


def truth(script: Script, wanted: GenerationRequest) -> list[int]:
    sampling = msgspec.structs.replace(wanted.sampling, seed=wanted.seed or 0)
    return scripted_tokens(script, wanted.prompt, wanted.max_tokens, sampling)


# ------------------------------------------------------------------------------------------------------- tokens


@pytest.mark.parametrize(("stages", "slots", "exact_rows"), [(1, 3, 32), (2, 4, 9), (3, 8, 32)])
async def test_many_at_once_get_the_tokens_of_one_alone(
    scripted: Scripted, stages: int, slots: int, exact_rows: int
) -> None:
    requests = random_requests(20, longest=40, seed=stages)
    async with scripted(stages, slots=slots, exact_rows=exact_rows, context=256) as running:
        engine = running.engine
        answers = await asyncio.gather(*(whole(engine.submit(wanted)) for wanted in requests))
        for wanted, answer in zip(requests, answers, strict=True):
            assert answer.tokens == truth(running.script, wanted)
            assert answer.finish_reason == "length"
            assert answer.text == engine.model.tokenizer.decode(answer.tokens)
        statistics = engine.statistics()
        assert statistics.requests_finished == 20
        assert statistics.generated_tokens == sum(wanted.max_tokens for wanted in requests)
        assert statistics.prompt_tokens == sum(len(wanted.prompt) for wanted in requests)
        assert (statistics.running, statistics.waiting, statistics.in_flight) == (0, 0, 0)


async def test_a_seed_fixes_the_answer_and_none_leaves_it_open(scripted: Scripted) -> None:
    warm = SamplingParameters(temperature=3.0)
    async with scripted() as running:
        fixed = [
            await whole(running.engine.submit(request(PROMPT, 12, sampling=warm, seed=seed))) for seed in (5, 5, 6)
        ]
        free = [await whole(running.engine.submit(request(PROMPT, 12, sampling=warm))) for _ in range(2)]
        assert (
            fixed[0].tokens == fixed[1].tokens == truth(running.script, request(PROMPT, 12, sampling=warm, seed=5))
        )
        assert fixed[2].tokens != fixed[0].tokens
        assert free[0].tokens != free[1].tokens


async def test_an_end_token_ends_the_answer_and_is_not_seen(scripted: Scripted) -> None:
    async with scripted(end_after=5) as running:
        wanted = request(PROMPT, 30, ignore_eos=False)
        answer = await whole(running.engine.submit(wanted))
        expected = truth(running.script, wanted)
        assert expected[5] == END_TOKEN
        assert answer.tokens == expected[:6]
        assert answer.finish_reason == "stop"
        assert answer.text == running.engine.model.tokenizer.decode(expected[:5])
        assert "<|" not in answer.text
        ignoring = await whole(running.engine.submit(msgspec.structs.replace(wanted, ignore_eos=True)))
        assert ignoring.tokens == expected
        assert ignoring.finish_reason == "length"
        shorter = await whole(running.engine.submit(request(PROMPT, 5, ignore_eos=False)))
        assert (shorter.tokens, shorter.finish_reason) == (expected[:5], "length")


async def test_further_tokens_that_end_an_answer(scripted: Scripted) -> None:
    async with scripted() as running:
        expected = truth(running.script, request(PROMPT, 30))
        position = next(index for index in range(3, 30) if expected[index] not in expected[:index])
        answer = await whole(running.engine.submit(request(PROMPT, 30, stop_token_ids=(expected[position],))))
        assert answer.tokens == expected[: position + 1]
        assert answer.finish_reason == "stop"
        assert answer.text == running.engine.model.tokenizer.decode(expected[:position])


@pytest.mark.parametrize("include", [False, True])
async def test_a_stop_string_over_token_borders_ends_the_answer(scripted: Scripted, include: bool) -> None:
    """Wherever it begins, nothing after it is seen, and nothing of it unless asked for."""
    async with scripted() as running:
        tokenizer = running.engine.model.tokenizer
        for seed in range(8):
            prompt = [*PROMPT, 10 + seed]
            expected = truth(running.script, request(prompt, 30))
            text = tokenizer.decode(expected)
            begin = 8 + seed
            stop = text[begin : begin + 5]
            place = text.index(stop)
            answer = await whole(
                running.engine.submit(request(prompt, 30, stop=("never this", stop), include_stop=include))
            )
            assert answer.text == text[: place + (5 if include else 0)]
            assert answer.finish_reason == "stop"
            assert answer.tokens == expected[: len(answer.tokens)]
            assert stop in tokenizer.decode(answer.tokens)
            assert stop not in tokenizer.decode(answer.tokens[:-1])
        assert running.engine.statistics().running == 0


async def test_a_stop_string_that_never_completes_is_not_swallowed(scripted: Scripted) -> None:
    async with scripted() as running:
        expected = truth(running.script, request(PROMPT, 10))
        text = running.engine.model.tokenizer.decode(expected)
        answer = await whole(running.engine.submit(request(PROMPT, 10, stop=(text[-3:] + "more",))))
        assert (answer.text, answer.finish_reason) == (text, "length")


async def test_log_probabilities_come_with_their_tokens(scripted: Scripted) -> None:
    async with scripted() as running:
        answer = await whole(running.engine.submit(request(PROMPT, 6, sampling=SamplingParameters(logprobs=3))))
        found = [entry for piece in answer.pieces for entry in piece.logprobs]
        assert len(found) == len(answer.tokens) == 6
        for token, entry in zip(answer.tokens, found, strict=True):
            assert entry.top[0] == (token, entry.logprob)
            assert len(entry.top) == 3


async def test_timings_say_what_happened(scripted: Scripted) -> None:
    async with scripted(slots=1, seconds=0.004) as running:
        one = running.engine.submit(request(PROMPT, 10))
        two = running.engine.submit(request([*PROMPT, *range(50, 90)], 10))
        await asyncio.gather(whole(one), whole(two))
        assert one.timings is not None
        assert two.timings is not None
        assert (one.timings.prompt_tokens, one.timings.generated_tokens, one.timings.cached_tokens) == (8, 10, 0)
        assert one.timings.queue_seconds < two.timings.queue_seconds
        assert two.timings.queue_seconds >= one.timings.generation_seconds
        assert two.timings.queue_seconds <= two.timings.time_to_first_token_seconds
        assert two.timings.generation_seconds >= 9 * 0.004
        assert 10 < two.timings.tokens_per_second < 300


async def test_a_prefix_that_was_seen_is_not_computed_again(scripted: Scripted) -> None:
    long = list(range(50, 130))
    async with scripted(slots=2) as running:
        for expected in (0, 64):
            stream = running.engine.submit(request([*long, 7 + expected], 5))
            answer = await whole(stream)
            assert answer.tokens == truth(running.script, request([*long, 7 + expected], 5))
            assert stream.timings is not None
            assert stream.timings.cached_tokens >= expected
        other = running.engine.submit(request([*long, 9], 5, cache_salt="mine"))
        assert (await whole(other)).tokens == truth(running.script, request([*long, 9], 5))
        assert other.timings is not None
        assert other.timings.cached_tokens == 0, "what others asked cannot be probed"


# ------------------------------------------------------------------------------------------------------ cancelling


async def test_cancelling_frees_the_slot_within_an_iteration(scripted: Scripted) -> None:
    async with scripted(slots=1, seconds=0.005) as running:
        engine = running.engine
        running_one = engine.submit(request(PROMPT, 200))
        answer = await first(running_one, 5)
        waiting = engine.submit(request([9, 9], 3))
        await asyncio.sleep(0.02)
        assert (engine.statistics().running, engine.statistics().waiting) == (1, 1)
        before = engine.statistics().iterations
        running_one.cancel()
        await rest(answer, running_one)
        assert answer.finish_reason == "cancelled"
        assert answer.tokens == truth(running.script, request(PROMPT, 200))[: len(answer.tokens)]
        assert answer.text == engine.model.tokenizer.decode(answer.tokens)
        assert (await whole(waiting)).tokens == truth(running.script, request([9, 9], 3))
        # The prompt and two rows of the other, and at most one iteration that was already on its way.
        assert engine.statistics().iterations - before <= 3 + 1
        running_one.cancel()
        assert engine.statistics().requests_cancelled == 1


async def test_cancelling_at_any_time_disturbs_nobody(scripted: Scripted) -> None:
    """While they wait, in the middle of a prompt, between tokens, and when they are over."""
    requests = random_requests(24, longest=30, seed=9)
    generator = random.Random(4)
    async with scripted(2, slots=3, seconds=0.0005, context=256) as running:

        async def ask(wanted: GenerationRequest, cancelled: bool) -> None:
            stream = running.engine.submit(wanted)
            reading = asyncio.create_task(whole(stream))
            if cancelled:
                await asyncio.sleep(generator.random() * 0.4)
                stream.cancel()
            answer = await reading
            expected = truth(running.script, wanted)
            if answer.finish_reason == "cancelled":
                assert cancelled
                assert answer.tokens == expected[: len(answer.tokens)]
            else:
                assert answer.tokens == expected

        await asyncio.gather(*(ask(wanted, index % 2 == 0) for index, wanted in enumerate(requests)))
        statistics = running.engine.statistics()
        assert statistics.requests_cancelled > 0
        assert statistics.requests_cancelled + statistics.requests_finished == 24
        assert (statistics.running, statistics.waiting) == (0, 0)


async def test_cancelling_from_another_thread(scripted: Scripted) -> None:
    async with scripted(seconds=0.002) as running:
        stream = running.engine.submit(request(PROMPT, 240))
        answer = await first(stream, 2)
        await asyncio.to_thread(stream.cancel)
        assert (await rest(answer, stream)).finish_reason == "cancelled"


async def test_a_reader_that_sleeps_does_not_hold_up_the_others(scripted: Scripted) -> None:
    async with scripted(slots=2) as running:
        asleep = running.engine.submit(request(PROMPT, 60))
        quick = await whole(running.engine.submit(request([5], 60)))
        assert quick.tokens == truth(running.script, request([5], 60))
        assert (await whole(asleep)).tokens == truth(running.script, request(PROMPT, 60))
        with pytest.raises(StopAsyncIteration):
            await anext(asleep)


async def test_streams_belong_to_the_loop_that_asked(scripted: Scripted) -> None:
    async with scripted() as running:
        found: list[list[int]] = []

        def elsewhere(prompt: list[int]) -> None:
            async def ask() -> None:
                found.append((await whole(running.engine.submit(request(prompt, 20)))).tokens)

            asyncio.run(ask())

        threads = [threading.Thread(target=elsewhere, args=([7, seed],)) for seed in range(3)]
        for thread in threads:
            thread.start()
        here = await whole(running.engine.submit(request(PROMPT, 20)))
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert here.tokens == truth(running.script, request(PROMPT, 20))
        assert sorted(found) == sorted(truth(running.script, request([7, seed], 20)) for seed in range(3))


async def test_a_loop_that_is_gone_holds_up_nobody(scripted: Scripted) -> None:
    async with scripted(slots=2, seconds=0.001) as running:

        def leave() -> RequestStream:
            async def ask() -> RequestStream:
                return running.engine.submit(request([3], 40))

            return asyncio.run(ask())

        await asyncio.to_thread(leave)
        answer = await whole(running.engine.submit(request(PROMPT, 50)))
        assert answer.tokens == truth(running.script, request(PROMPT, 50))


# -------------------------------------------------------------------------------------------------------- refusals


async def test_a_full_queue_is_said_at_once(scripted: Scripted) -> None:
    async with scripted(slots=1, max_waiting=2, seconds=0.005) as running:
        engine = running.engine
        streams = [engine.submit(request(PROMPT, 100)) for _ in range(1)]
        await first(streams[0], 1)
        streams += [engine.submit(request(PROMPT, 2)) for _ in range(2)]
        await asyncio.sleep(0.05)
        with pytest.raises(QueueFullError, match="try again") as raised:
            engine.submit(request(PROMPT, 2))
        assert raised.value.retry_after > 0
        streams[0].cancel()
        await whole(streams[1])
        assert (await whole(engine.submit(request([6], 2)))).tokens == truth(running.script, request([6], 2))


async def test_more_at_once_than_there_is_room_for_are_refused_not_lost(scripted: Scripted) -> None:
    """Faster than the engine's thread can look."""
    async with scripted(slots=1, max_waiting=3) as running:
        outcomes = await asyncio.gather(
            *(_outcome(running.engine, request([seed + 3], 4)) for seed in range(20)), return_exceptions=True
        )
        refused = [outcome for outcome in outcomes if isinstance(outcome, QueueFullError)]
        answered = [outcome for outcome in outcomes if isinstance(outcome, Answer)]
        assert len(refused) + len(answered) == 20
        assert len(refused) >= 10
        assert len(answered) >= 3


async def _outcome(engine: Engine, wanted: GenerationRequest) -> Answer:
    return await whole(engine.submit(wanted))


async def test_a_prompt_that_does_not_fit_is_said_with_both_numbers(scripted: Scripted) -> None:
    async with scripted(context=64) as running:
        with pytest.raises(
            ContextLengthError, match=r"64 tokens, and a slot holds 64 positions.*--context"
        ) as raised:
            running.engine.submit(request([5] * 64))
        assert raised.value.code == "context_length_exceeded"
        answer = await whole(running.engine.submit(request([5] * 63, 10)))
        assert (answer.tokens, answer.finish_reason) == (truth(running.script, request([5] * 63, 1)), "length")
        full = await whole(running.engine.submit(request([5] * 40, 1000)))
        assert len(full.tokens) == 24
        assert full.finish_reason == "length"


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        (request([5, 300]), "prompt"),
        (request([-1]), "prompt"),
        (request([5], stop_token_ids=(10**9,)), "stop_token_ids"),
        (request([5], stop_token_ids=(-7,)), "stop_token_ids"),
        (request([5], sampling=SamplingParameters(temperature=-1.0)), "temperature"),
        (request([5], sampling=SamplingParameters(logit_bias=((300, 1.0),))), "logit_bias"),
    ],
)
async def test_what_would_fail_on_a_stage_is_refused_here(
    scripted: Scripted, wanted: GenerationRequest, param: str
) -> None:
    """There it would take the ring, and all the others, with it."""
    async with scripted() as running:
        with pytest.raises(RequestError) as raised:
            running.engine.submit(wanted)
        assert raised.value.param == param
        assert running.engine.readiness().ready


@pytest.mark.parametrize(
    ("wanted", "param"),
    [(request([]), "prompt"), (request([5], 0), "max_tokens"), (request([5], priority=1000), "priority")],
)
async def test_what_the_planner_refuses_reaches_the_stream(
    scripted: Scripted, wanted: GenerationRequest, param: str
) -> None:
    async with scripted() as running:
        with pytest.raises(RequestError) as raised:
            await whole(running.engine.submit(wanted))
        assert raised.value.param == param


@pytest.mark.parametrize("by", ["queue_timeout", "deadline"])
async def test_who_waits_too_long_is_told(scripted: Scripted, by: str) -> None:
    options = {"queue_timeout": 0.1} if by == "queue_timeout" else {}
    async with scripted(slots=1, seconds=0.005, **options) as running:
        holder = running.engine.submit(request(PROMPT, 100))
        await first(holder, 1)
        started = time.perf_counter()
        late = running.engine.submit(request([5], 3, deadline=0.1 if by == "deadline" else None))
        with pytest.raises(RequestTimeoutError, match=r"waited 0.1 s in the queue"):
            await whole(late)
        assert 0.1 <= time.perf_counter() - started < 0.5
        holder.cancel()
        await asyncio.sleep(0)
        assert running.engine.statistics().requests_failed == 1


async def test_one_span_that_fails_fails_one_request(scripted: Scripted) -> None:
    async with scripted(2, slots=3) as running:
        await whole(running.engine.submit(request([5], 2)))
        faulty = ScriptedLoader(
            running.script, digest=running.loaders[1].digest, width=64, layers=4, faults=[FailSpan(3, sequence=2)]
        )
        assert running.servers[1]._held is not None
        running.servers[1]._held[1].run = faulty.load(  # type: ignore[method-assign]
            running.loaders[1].loads[0], lambda text: None
        ).run
        streams = [running.engine.submit(request([20 + index], 20)) for index in range(3)]
        outcomes = await asyncio.gather(*(whole(stream) for stream in streams), return_exceptions=True)
        assert isinstance(outcomes[1], RingError)
        assert str(outcomes[1]) == "scripted fault"
        for index in (0, 2):
            answer = outcomes[index]
            assert isinstance(answer, Answer)
            assert answer.tokens == truth(running.script, request([20 + index], 20))
        assert running.engine.statistics().requests_failed == 1


async def test_a_token_that_the_model_does_not_have_fails_one_request(scripted: Scripted) -> None:
    """A stage that is damaged must not spoil what its answer goes into next."""
    async with scripted(2, slots=3) as running:
        await whole(running.engine.submit(request([5], 2)))
        assert running.servers[1]._held is not None
        runtime = running.servers[1]._held[1]
        run = runtime.run
        runs = 0

        def damaged(iteration: Iteration, *others: Any) -> StageOutput:
            nonlocal runs
            runs += 1
            output = run(iteration, *others)
            if runs < 6:
                return output
            samples = tuple(
                msgspec.structs.replace(sample, token=10**9)
                if iteration.spans[sample.span].sequence == 2
                else sample
                for sample in output.samples
            )
            return dataclasses.replace(output, samples=samples)

        runtime.run = damaged  # type: ignore[method-assign,assignment]
        streams = [running.engine.submit(request([20 + index], 20)) for index in range(3)]
        outcomes = await asyncio.gather(*(whole(stream) for stream in streams), return_exceptions=True)
        assert str(outcomes[1]) == "the last stage answered with token 1000000000, the model has tokens 0 to 299"
        for index in (0, 2):
            answer = outcomes[index]
            assert isinstance(answer, Answer)
            assert answer.tokens == truth(running.script, request([20 + index], 20))
        assert running.engine.ring().epoch == 1


# ----------------------------------------------------------------------------------------------------------- state


async def test_the_engine_says_what_it_is(scripted: Scripted) -> None:
    async with scripted(3, slots=5, context=128, link_delay_ms=1.0) as running:
        engine = running.engine
        await whole(engine.submit(request(PROMPT, 3)))
        assert engine.readiness().ready
        assert not engine.readiness().missing
        ring = engine.ring()
        assert (ring.model_id, ring.epoch, ring.layers, ring.link_delay_ms) == ("tiny", 1, 4, 1.0)
        assert [stage.start for stage in ring.stages[1:]] == [stage.end for stage in ring.stages[:-1]]
        assert (ring.stages[0].start, ring.stages[-1].end) == (0, 4)
        assert [stage.address for stage in ring.stages] == [
            f"127.0.0.1:{server.port}" for server in running.servers
        ]
        assert {stage.state for stage in ring.stages} == {"ready"}
        assert {stage.slots for stage in ring.stages} == {5}
        model = engine.model
        assert (model.id, model.context_length) == ("tiny", 128)
        assert abs(model.created - time.time()) < 60
        assert model.chat_template is not None


async def test_before_the_start_and_after_the_stop(scripted: Scripted) -> None:
    async with scripted(seconds=0.002) as running:
        engine = running.engine
        stream = engine.submit(request(PROMPT, 200))
        waiting = [engine.submit(request([7], 200)) for _ in range(20)]
        answer = await first(stream, 3)
        await engine.stop()
        with pytest.raises(RingError, match="the engine has stopped"):
            await rest(answer, stream)
        for each in waiting:
            with pytest.raises(RingError, match="the engine has stopped"):
                await whole(each)
        assert answer.tokens == truth(running.script, request(PROMPT, 200))[: len(answer.tokens)]
        assert stream.timings is not None
        await engine.stop()
        for ask in (lambda: engine.submit(request(PROMPT)), engine.ring, engine.statistics):
            with pytest.raises(RingError, match="not running"):
                ask()
        assert engine.readiness().missing == ("the engine is not running",)
        # The stages listen again, as soon as the end of their links has reached them.
        await until(lambda: all(server._session is None or server._session.over for server in running.servers))
