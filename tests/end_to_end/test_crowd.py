"""Many clients at once, a third of whom leave in the middle: nobody else notices, and nothing is left behind."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from longspan.cli.local_server import local_server
from tests.end_to_end.test_openai_client import MODEL, QUESTIONS, messages

SLOTS, WAITING = 8, 48
CLIENTS = 64
LEAVING = 1 / 3
MOST_GROWTH = 0.05
"""Share by which the memory of all processes may grow after the first third of the time."""

ORDERS: list[dict[str, Any]] = [
    {
        "model": MODEL,
        "messages": messages(question),
        "max_tokens": 24 + 8 * (number % 3),
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
        **({"temperature": 0} if number % 2 else {"temperature": 0.9, "seed": number}),
    }
    for number, question in enumerate(QUESTIONS)
]


@dataclasses.dataclass
class Tally:
    """What happened. complete, left, refused: answers. odd: what should not have happened."""

    complete: int = 0
    left: int = 0
    refused: int = 0
    odd: list[str] = dataclasses.field(default_factory=list)


@pytest.fixture
def crowded() -> Iterator[str]:
    arguments = ["demo", "--stages", "2", "--threads", "1", "--context", "512", "--port", "0"]
    with local_server([*arguments, "--slots", str(SLOTS), "--max-waiting", str(WAITING)]) as server:
        yield server.url


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seconds", [pytest.param(120.0, marks=pytest.mark.soak)])
async def test_a_crowd_of_which_a_third_leaves(crowded: str, seconds: float) -> None:
    async with httpx.AsyncClient(
        base_url=crowded, timeout=180, limits=httpx.Limits(max_connections=None)
    ) as client:
        alone = [await tokens_of(client, order) for order in ORDERS]
        tally = Tally()
        ends = time.monotonic() + seconds
        watching = asyncio.create_task(memory_until(ends, crowded))
        await asyncio.gather(*(ask_until(ends, client, number, alone, tally) for number in range(CLIENTS)))
        memory = await watching
        assert tally.odd == []
        assert tally.complete > 2 * SLOTS
        assert tally.left > SLOTS
        assert tally.refused > 0
        await all_slots_are_free(client)
        # Whoever asks now gets what he got before.
        assert await tokens_of(client, ORDERS[0]) == alone[0]
    settled = memory[len(memory) // 3 :]
    growth = max(settled) / settled[0] - 1
    sys.stdout.write(
        f"{CLIENTS} clients {seconds:.0f} s: {tally.complete} answers, {tally.left} left, {tally.refused} refused, "
        f"memory {settled[0] / 2**20:.1f} to {max(settled) / 2**20:.1f} MiB ({growth:+.1%})\n"
    )
    assert growth < MOST_GROWTH


async def ask_until(
    ends: float, client: httpx.AsyncClient, number: int, alone: list[list[int]], tally: Tally
) -> None:
    """One client: asks again and again, and now and then leaves after a few events."""
    dice = random.Random(number)
    while time.monotonic() < ends:
        which = dice.randrange(len(ORDERS))
        most = dice.randint(0, 20) if dice.random() < LEAVING else None
        try:
            found = await tokens_of(client, ORDERS[which], most)
        except httpx.HTTPStatusError as error:
            response = error.response
            if response.status_code != 429:
                tally.odd.append(f"{response.status_code}: {response.text}")
                return
            tally.refused += 1
            wait = float(response.headers["retry-after"])
            assert wait >= 1
            await asyncio.sleep(max(0.0, min(wait, ends - time.monotonic())))
            continue
        except (httpx.HTTPError, ValueError) as error:
            tally.odd.append(repr(error))
            return
        if found != alone[which][: len(found)] or (most is None and len(found) != len(alone[which])):
            tally.odd.append(f"order {which} got {found}, alone {alone[which]}")
        if most is None:
            tally.complete += 1
        else:
            tally.left += 1


async def tokens_of(client: httpx.AsyncClient, order: dict[str, Any], most: int | None = None) -> list[int]:
    """Tokens of a streamed answer; after `most` events the client leaves."""
    found: list[int] = []
    async with client.stream("POST", "/v1/chat/completions", json=order) as response:
        if response.status_code != 200:
            await response.aread()
            response.raise_for_status()
        events = 0
        async for line in response.aiter_lines():
            if most is not None and events >= most:
                return found
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                return found
            events += 1
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise ValueError(f"the answer broke off: {event}")
            for choice in event["choices"]:
                found += choice.get("token_ids") or ()
    raise ValueError("the answer ended without [DONE]")


async def memory_until(ends: float, url: str) -> list[int]:
    """Bytes of all processes of the server, every two seconds."""
    found: list[int] = []
    servers = [process for process in psutil.Process().children() if "serve" in process.cmdline()]
    processes = [process for server in servers for process in (server, *server.children(recursive=True))]
    assert len(processes) >= 3, f"{url}: two stages and a coordinator"
    while time.monotonic() < ends:
        found.append(sum(process.memory_info().rss for process in processes))
        await asyncio.sleep(2)
    return found


async def all_slots_are_free(client: httpx.AsyncClient) -> None:
    """Soon nothing runs and nothing waits."""
    wanted = {"vllm:num_requests_running": 0, "vllm:num_requests_waiting": 0, "longspan:slots_free": SLOTS}
    found: dict[str, float] = {}
    for _ in range(100):
        lines = (await client.get("/metrics")).text.splitlines()
        found = {
            name: float(line.rsplit(" ", 1)[1]) for line in lines for name in wanted if line.startswith(name + "{")
        }
        if found == wanted:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"slots are left behind: {found}")
