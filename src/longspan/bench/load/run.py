"""Carries a load out: conversations at their times, with at most so many requests at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import msgspec

from longspan.bench.load.answer import LoadAnswer
from longspan.bench.load.endpoint import Endpoint, Sampling
from longspan.bench.load.prompts import LoadPrompt


async def run_load(
    endpoint: Endpoint,
    prompts: Sequence[LoadPrompt],
    times: Sequence[float],
    sampling: Sampling,
    *,
    most: int | None = None,
    on_answer: Callable[[LoadAnswer], None] = lambda answer: None,
) -> list[LoadAnswer]:
    """Have every conversation, the i-th from `times[i]` seconds on; answers in the order of prompts and turns.

    most: requests at once; with all times 0 that is a closed loop of `most` users. on_answer: at every end.
    A conversation whose answer failed ends there. Time 0 is when this is called.
    """
    gate = asyncio.Semaphore(most) if most is not None else contextlib.nullcontext()
    endpoint.begin()

    async def converse(prompt: LoadPrompt, at: float) -> list[LoadAnswer]:
        if (wait := at - endpoint.now()) > 0:
            await asyncio.sleep(wait)
        limited = sampling
        if prompt.max_tokens is not None:
            limited = msgspec.structs.replace(sampling, max_tokens=prompt.max_tokens)
        messages = [{"role": role, "content": text} for role, text in prompt.history]
        answers: list[LoadAnswer] = []
        for turn in prompt.turns:
            messages.append({"role": "user", "content": turn})
            async with gate:
                # Behind a limit a request is due when it is let through: its latency counts from there.
                due = endpoint.now() if most is not None or answers else at
                answer = await endpoint.ask(messages, limited, due=due, category=prompt.category)
            answers.append(answer)
            on_answer(answer)
            if answer.error:
                break
            messages.append({"role": "assistant", "content": answer.text})
        return answers

    found = await asyncio.gather(*map(converse, prompts, times))
    return [answer for answers in found for answer in answers]
