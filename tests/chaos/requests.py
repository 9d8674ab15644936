"""Requests whose answers are known: what is asked, and what the unsplit model answers undisturbed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import httpx

from longspan.bench.child_server import child_server

TOKENS = 60


class RefusedError(RuntimeError):
    """The waiting line is full; Retry-After was said."""


def body_of(index: int) -> dict[str, Any]:
    """Request number `index`; some drawn with a seed, some greedy, some that repeat themselves (for drafts)."""
    chance = random.Random(index)
    prompt = [chance.randrange(3, 250) for _ in range(chance.randrange(2, 9))]
    body: dict[str, Any] = {
        "model": "default",
        "prompt": prompt * chance.choice((1, 3, 6)),
        "max_tokens": chance.randrange(TOKENS // 2, TOKENS),
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
        "temperature": 0.0,
    }
    if index % 3:
        body |= {"temperature": 0.9, "top_p": 0.95, "seed": index}
    return body


async def ask(client: httpx.AsyncClient, index: int, on_token: Callable[[], None] = lambda: None) -> list[int]:
    """The tokens of one answer.

    Raises RefusedError for a full queue, RuntimeError with the server's words, httpx errors when it is cut off.
    """
    tokens: list[int] = []
    async with client.stream("POST", "/v1/completions", json=body_of(index)) as answer:
        if answer.status_code != 200:
            await answer.aread()
            message = f"{answer.status_code}: {answer.json()['error']['message']}"
            full = answer.status_code == 429 and float(answer.headers["retry-after"]) > 0
            raise RefusedError(message) if full else RuntimeError(message)
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            for choice in event["choices"]:
                tokens += choice.get("token_ids") or []
                on_token()
    return tokens


async def expected_answers(model: str, count: int) -> list[list[int]]:
    """What the unsplit model answers, without speculation and without anything happening to it."""
    arguments = ["-m", "longspan", "serve", model, "--quiet", "--threads", "1", "--context", "256", "--port", "0"]
    async with (
        child_server([*arguments, "--proposer", "none"]) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        return [await ask(client, index) for index in range(count)]
