"""`AsyncLLM` over an engine that really runs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import Any

import pytest

from longspan import Answer, AsyncLLM
from longspan.engine import EngineOptions
from longspan.errors import ContextLengthError, LongspanError, RequestError, RingError, UsageError
from longspan.llm.keywords import EngineKeywords, SamplingKeywords
from longspan.llm.prompts import Prompt
from longspan.request import GenerationRequest
from longspan.sampling.parameters import SamplingParameters

MESSAGES = [{"role": "user", "content": "the one and the other"}]


def test_the_keywords_are_in_step_with_what_they_stand_for() -> None:
    options = {field.name for field in dataclasses.fields(EngineOptions)}
    assert set(EngineKeywords.__annotations__) == options - {"model"}
    known = {*SamplingParameters.__struct_fields__, *GenerationRequest.__struct_fields__}
    assert set(SamplingKeywords.__annotations__) <= known


async def test_a_question_and_a_conversation_are_the_same(llm: AsyncLLM) -> None:
    answer = await llm.chat(MESSAGES, max_tokens=6, ignore_eos=True)
    assert (len(answer.tokens), answer.finish_reason) == (6, "length")
    assert answer.timings.generated_tokens == 6
    asked = await llm.chat(MESSAGES[0]["content"], max_tokens=6, ignore_eos=True)
    assert (asked.text, asked.tokens) == (answer.text, answer.tokens)
    # Through the template the prompt is another one than the plain text.
    assert (await llm.generate("the one and the other", max_tokens=6))[0].tokens != answer.tokens


async def test_pieces_make_the_answer(llm: AsyncLLM) -> None:
    answer = await llm.chat(MESSAGES, max_tokens=8, ignore_eos=True)
    pieces = [piece async for piece in llm.stream(MESSAGES, max_tokens=8, ignore_eos=True)]
    assert "".join(piece.text for piece in pieces) == answer.text
    assert tuple(token for piece in pieces for token in piece.tokens) == answer.tokens
    assert [piece.finish_reason for piece in pieces if piece.finish_reason] == ["length"]
    (text,) = await llm.generate("in the", max_tokens=5, ignore_eos=True)
    plain = [piece async for piece in llm.stream_text("in the", max_tokens=5, ignore_eos=True)]
    assert tuple(token for piece in plain for token in piece.tokens) == text.tokens


async def test_a_stream_that_is_left_is_cancelled(llm: AsyncLLM) -> None:
    async with contextlib.aclosing(llm.stream(MESSAGES, max_tokens=60, ignore_eos=True)) as pieces:
        async for _ in pieces:
            break
    for _ in range(200):
        if llm.engine.statistics().requests_cancelled:
            break
        await asyncio.sleep(0.02)
    assert llm.engine.statistics().running == 0


async def test_a_batch_is_in_order_and_larger_than_the_slots(llm: AsyncLLM) -> None:
    prompts = [f"the {number} and the {number + 1}" for number in range(9)]
    told: dict[int, Answer] = {}
    answers = await llm.generate(prompts, max_tokens=4, ignore_eos=True, on_answer=told.__setitem__)
    alone = [(await llm.generate(prompt, max_tokens=4, ignore_eos=True))[0].tokens for prompt in prompts]
    assert [answer.tokens for answer in answers] == alone
    assert told == dict(enumerate(answers))
    tokens = llm.model.tokenizer.encode(prompts[0], add_special=True, parse_special=True)
    mixed: list[Prompt] = [tokens, prompts[1]]
    by_tokens = await llm.generate(mixed, max_tokens=4, ignore_eos=True)
    assert [answer.tokens for answer in by_tokens] == alone[:2]
    assert (await llm.generate(tokens, max_tokens=4, ignore_eos=True))[0].tokens == alone[0]
    assert await llm.generate([]) == []


async def test_sampling(llm: AsyncLLM) -> None:
    async def tokens(**sampling: Any) -> tuple[int, ...]:
        return (await llm.chat(MESSAGES, max_tokens=8, ignore_eos=True, **sampling)).tokens

    greedy = await tokens()
    assert await tokens(temperature=1.5, seed=7) == await tokens(temperature=1.5, seed=7) != greedy
    assert greedy[0] not in await tokens(logit_bias={greedy[0]: -100})
    assert await tokens(stop_token_ids=[greedy[3]]) == greedy[: greedy.index(greedy[3]) + 1]
    answer = await llm.chat(MESSAGES, max_tokens=3, ignore_eos=True, logprobs=2)
    assert [len(entry.top) for entry in answer.logprobs] == [2, 2, 2]
    text = (await llm.chat(MESSAGES, max_tokens=8, ignore_eos=True)).text
    stopped = await llm.chat(MESSAGES, max_tokens=8, ignore_eos=True, stop=text[2:4])
    assert (stopped.text, stopped.finish_reason) == (text[: text.index(text[2:4])], "stop")


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1000}, "prompt"),
        ({"temperature": -1.0}, "temperature"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
async def test_refusals(llm: AsyncLLM, sampling: Any, param: str) -> None:
    with pytest.raises(RequestError) as refused:
        await llm.chat(MESSAGES, **sampling)
    assert refused.value.param == param
    with pytest.raises(RequestError):
        await llm.generate(["fine", "the one"], **sampling)


async def test_one_bad_prompt_of_a_batch_is_told_before_any_runs(llm: AsyncLLM) -> None:
    with pytest.raises(ContextLengthError, match="Shorten"):
        await llm.generate(["the one", "the " * 400], max_tokens=4)
    with pytest.raises(RequestError, match="empty"):
        await llm.generate([[], [5]], max_tokens=4)
    assert llm.engine.statistics().requests_finished == 0


async def test_before_and_after(tiny: str) -> None:
    llm = AsyncLLM(tiny, threads=1, slots=1, context=64)
    with pytest.raises(RingError):
        await llm.chat("x")
    await llm.stop()
    with pytest.raises(UsageError):
        AsyncLLM(tiny, slots=0)
    with pytest.raises(LongspanError, match="no such model"):
        await AsyncLLM("missing.gguf").start()
