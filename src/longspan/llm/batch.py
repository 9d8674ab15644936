"""Many requests over one engine, as many at a time as keep it busy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from longspan.engine import Engine
from longspan.errors import LongspanError
from longspan.llm.answer import Answer, whole_answer
from longspan.request import GenerationRequest

Result = Answer | LongspanError

AHEAD = 2
"""Requests under way for each slot: the others' prompts wait in the engine, so that no slot waits for us."""


async def run_batch(
    engine: Engine,
    requests: Iterable[tuple[int, GenerationRequest]],
    slots: int,
    on_result: Callable[[int, Result], None],
) -> None:
    """Answer every (number, request); `on_result` gets the number and the answer, or the error that ended it.

    Requests are taken from the iterable only when they can be submitted, and reported in the order of their ends.
    """
    room = asyncio.Semaphore(AHEAD * slots)

    async def answer(number: int, request: GenerationRequest) -> None:
        try:
            result: Result = await whole_answer(engine.submit(request))
        except LongspanError as error:
            result = error
        finally:
            room.release()
        on_result(number, result)

    async with asyncio.TaskGroup() as group:
        for number, request in requests:
            await room.acquire()
            group.create_task(answer(number, request))
