"""`longspan demo`: see a model answer that is split over processes with slow links between them."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number

from longspan.cli.engine_options import RING, AtLeastOne, Milliseconds
from longspan.cli.local_server import LocalServer, local_server
from longspan.cli.output import print_facts, print_json
from longspan.cli.ring_table import ring_table
from longspan.cli.sampling_options import ANSWER
from longspan.status import RingStatus

QUESTION = "What is a river? Answer in one sentence."


class DemoResult(msgspec.Struct, frozen=True):
    """What was asked, what came back, and how fast, as a client saw it. Times in seconds.

    tokens_per_second: tokens after the first over the time after the first.
    """

    question: str
    answer: str
    finish_reason: str
    tokens: int
    time_to_first_token_seconds: float
    tokens_per_second: float
    link_delay_ms: float
    ring: RingStatus


def demo(
    model: str = "demo",
    /,
    *,
    question: Annotated[str, Parameter(group=ANSWER)] = QUESTION,
    max_tokens: Annotated[int, Parameter(group=ANSWER, validator=Number(gte=1))] = 80,
    stages: Annotated[AtLeastOne, Parameter(group=RING)] = 2,
    link_delay: Annotated[Milliseconds, Parameter(group=RING)] = 25.0,
    json: bool = False,
) -> None:
    """Split a model over processes with slow links between them, ask it over HTTP, and stop.

    Fetches the demo model first, if it is not here yet (100 MB).

    For example:

        longspan demo
        longspan demo --stages 3 --link-delay 50
        longspan demo --question "Name three rivers." --json

    Parameters
    ----------
    model
        The model to ask.
    question
        What to ask.
    max_tokens
        Most tokens of the answer.
    stages
        Processes that the layers are split over.
    link_delay
        What links between machines are made to take, in ms each way.
    json
        Print everything as JSON.
    """
    arguments = [model, "--stages", str(stages), "--link-delay", str(link_delay), "--port", "0", "--quiet"]
    with local_server(arguments) as server:
        if not json:
            print(f"{server.url}  {stages} stages, {link_delay:g} ms each way between machines\n\n› {question}\n")
        result = _ask(server, question, max_tokens, link_delay, show=not json)
    if json:
        print_json(result)
        return
    print("\n")
    print_facts(
        [
            ("tokens per second", f"{result.tokens_per_second:.1f}"),
            ("time to first token", f"{result.time_to_first_token_seconds:.2f} s"),
            ("tokens", f"{result.tokens} ({result.finish_reason})"),
        ]
    )
    print(f"\n{ring_table(result.ring)}")


def _ask(server: LocalServer, question: str, max_tokens: int, link_delay: float, *, show: bool) -> DemoResult:
    """Ask for a streamed answer, write it to the standard output as it comes if `show`, and look at the ring."""
    body: dict[str, Any] = {
        "model": msgspec.json.decode(server.get("/v1/models"))["data"][0]["id"],
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream_options": {"include_usage": True},
    }
    texts: list[str] = []
    finish_reason, tokens = "", 0
    started = time.perf_counter()
    first = last = started
    for chunk in server.stream_chat(body):
        if usage := chunk.get("usage"):
            tokens = usage["completion_tokens"]
        for choice in chunk["choices"]:
            text = choice["delta"].get("content") or ""
            if text or choice["finish_reason"]:
                last = time.perf_counter()
                first = first if texts else last
                texts.append(text)
            finish_reason = choice["finish_reason"] or finish_reason
            if show:
                sys.stdout.write(text)
                sys.stdout.flush()
    return DemoResult(
        question=question,
        answer="".join(texts),
        finish_reason=finish_reason,
        tokens=tokens,
        time_to_first_token_seconds=first - started,
        tokens_per_second=(tokens - 1) / (last - first) if last > first else 0.0,
        link_delay_ms=link_delay,
        ring=msgspec.json.decode(server.get("/ring"), type=RingStatus),
    )
