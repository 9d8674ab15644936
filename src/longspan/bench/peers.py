"""Longspan beside other servers, on the same file, prompts, token counts and threads, A B B A in one run.

llama.cpp       its own server, out of xllamacpp, on this machine; no distance
llama.cpp-rpc   its own way to split: llama-server and rpc-server with a delayed link between them
transformers    Hugging Face's library on the CPU, the file dequantised as it reads it; no distance
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import msgspec

from longspan.bench.child_server import child_server
from longspan.bench.paired import paired
from longspan.bench.peer_kinds import PEERS, Peer, PeerOrder, PeerPrograms, peer_server, why_absent
from longspan.bench.wan_texts import MOST_REQUESTS, prompts
from longspan.errors import LongspanError, UsageError
from longspan.model.chat_template import ChatTemplate
from longspan.model.source import GgufSource, ModelSource
from longspan.model.tokenizer import Tokenizer

WARMUPS = 3
"""Runs of a condition before it is measured: a server that speculates learns in its first seconds what pays."""


class PeerRow(msgspec.Struct, frozen=True):
    """One condition: all requests together, over HTTP, medians over rounds. ratio: ours over the peer's, median
    over rounds. noise: relative difference of the two measurements of an arm in a round, median. delay_ms: one way.
    absent: why a peer cannot run here; then it has one row, and nothing else stands in it."""

    peer: Peer
    text: str | None = None
    concurrency: int | None = None
    delay_ms: float | None = None
    tokens_per_second: float | None = None
    peer_tokens_per_second: float | None = None
    ratio: float | None = None
    noise: float | None = None
    absent: str | None = None


class PeersPlan(msgspec.Struct, frozen=True):
    """What to measure. delays_ms: of a split peer."""

    texts: tuple[str, ...]
    concurrency: tuple[int, ...]
    delays_ms: tuple[float, ...]
    tokens: int
    rounds: int
    threads: int
    peers: tuple[Peer, ...] = PEERS
    programs: PeerPrograms = PeerPrograms()

    def __post_init__(self) -> None:
        if max(self.concurrency) > MOST_REQUESTS:
            raise UsageError(f"there are {MOST_REQUESTS} prompts of each text, so at most so many requests at once")


class PeersFigures(msgspec.Struct, frozen=True):
    """rows, and what they were measured on."""

    rows: tuple[PeerRow, ...]
    model: str
    quantisation: str
    threads: int
    tokens: int
    rounds: int


class Peers:
    """The benchmark over one plan. reference: names the source to other processes."""

    def __init__(self, plan: PeersPlan, source: ModelSource, reference: str, report: Callable[[str], None]) -> None:
        if not isinstance(source, GgufSource):
            raise UsageError("the peers read a GGUF file: give a .gguf or a reference to one, not a layer package")
        self._plan = plan
        self._source = source
        self._reference = reference
        self._report = report
        tokenizer = Tokenizer(source.vocabulary_file())
        template = ChatTemplate(source.chat_template) if source.chat_template is not None else None
        self._prompts = {text: prompts(text, tokenizer, template) for text in plan.texts}
        longest = max(len(prompt) for found in self._prompts.values() for prompt in found)
        self._cells = longest + plan.tokens + 1

    async def measure(self) -> PeersFigures:
        """Every condition. Raises LongspanError."""
        plan = self._plan
        rows: list[PeerRow] = []
        for peer in plan.peers:
            if (absent := await why_absent(peer, plan.programs)) is not None:
                rows.append(PeerRow(peer, absent=absent))
                continue
            for delay in plan.delays_ms if peer == "llama.cpp-rpc" else (0.0,):
                rows += await self._side_by_side(peer, delay)
        known = self._source.description
        return PeersFigures(tuple(rows), known.model_id, known.quantisation, plan.threads, plan.tokens, plan.rounds)

    async def _side_by_side(self, peer: Peer, delay: float) -> list[PeerRow]:
        plan = self._plan
        self._report(f"{peer}, {delay:g} ms: starting both servers")
        ours = ["-m", "longspan", "serve", self._reference, "--port", "0", "--quiet"]
        ours += ["--threads", str(plan.threads), "--slots", str(max(plan.concurrency))]
        ours += ["--context", str(self._cells)]
        if peer == "llama.cpp-rpc":
            ours += ["--stages", "2", "--link-delay", str(delay)]
        source = self._source
        slots = max(plan.concurrency)
        order = PeerOrder(peer, source.path, source.description.layers, plan.threads, slots, self._cells, delay)
        async with child_server(ours) as our_url, peer_server(order, plan.programs) as peer_url:
            arms = (_Asker(our_url, {}), _Asker(peer_url, {"cache_prompt": False}))
            try:
                return [
                    await self._condition(peer, arms, text, count, delay)
                    for text in plan.texts
                    for count in plan.concurrency
                ]
            finally:
                for arm in arms:
                    await arm.close()

    async def _condition(
        self, peer: Peer, arms: tuple[_Asker, _Asker], text: str, count: int, delay: float
    ) -> PeerRow:
        plan = self._plan
        asked = self._prompts[text][:count]
        for number in range(WARMUPS):
            for arm in arms:
                await arm.tokens_per_second(asked, plan.tokens, f"{text} {count} warm-up {number}")
        found: tuple[list[float], list[float]] = ([], [])
        for number in range(plan.rounds):
            self._report(f"{peer}, {delay:g} ms, {text}, {count} requests: round {number + 1} of {plan.rounds}")
            for place, index in enumerate((0, 1, 1, 0)):
                salt = f"{text} {count} {number} {place}"
                found[index].append(await arms[index].tokens_per_second(asked, plan.tokens, salt))
        figures = paired(*found)
        return PeerRow(
            peer,
            text,
            count,
            delay,
            statistics.median(found[0]),
            statistics.median(found[1]),
            figures.ratio,
            figures.noise,
        )


class _Asker:
    """A client of one server."""

    def __init__(self, url: str, fields: dict[str, Any]) -> None:
        self._client = httpx.AsyncClient(base_url=url, timeout=600.0, limits=httpx.Limits(max_connections=None))
        self._fields = fields

    async def tokens_per_second(self, asked: Sequence[tuple[int, ...]], tokens: int, salt: str) -> float:
        """Generated tokens of all requests at once, over the time until the last has ended.

        salt: keeps our server from taking prompts out of the KV of a run before, as the peer is told not to.
        """
        model = await self._model()
        fields = self._fields or {"cache_salt": salt}
        started = time.perf_counter()
        counts = await asyncio.gather(*(self._ask(model, prompt, tokens, fields) for prompt in asked))
        return sum(counts) / (time.perf_counter() - started)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _model(self) -> str:
        response = await self._client.get("/v1/models")
        return str(response.raise_for_status().json()["data"][0]["id"])

    async def _ask(self, model: str, prompt: tuple[int, ...], tokens: int, fields: dict[str, Any]) -> int:
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            **fields,
        }
        response = await self._client.post("/v1/completions", json=body)
        if response.status_code != 200:
            raise LongspanError(f"the server answered {response.status_code}: {response.text[:500]}")
        made = int(response.json()["usage"]["completion_tokens"])
        if made != tokens:
            raise LongspanError(f"an answer has {made} tokens, {tokens} were asked, so nothing can be compared")
        return made
