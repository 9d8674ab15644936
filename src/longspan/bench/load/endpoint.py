"""An OpenAI endpoint as a load client sees it: streams an answer, asks for the model, reads the metrics."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

import httpx
import msgspec

from longspan.bench.load.answer import LoadAnswer
from longspan.errors import LongspanError, UsageError

Backend = Literal["openai", "openai-chat"]
"""Completions, or chat completions; the names are vLLM's."""

PATHS: dict[Backend, str] = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}

PATIENCE_SECONDS = 600.0
"""How long a server may say nothing."""

_DATA = b"data:"
_END = b"[DONE]"


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """What goes into every request. extra: more fields of the body, as the server knows them."""

    max_tokens: int = 128
    temperature: float = 0.0
    ignore_eos: bool = False
    extra: dict[str, Any] = {}


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    metrics: dict[str, Any] | None = None
    error: Any = None


class Endpoint:
    """Where to ask. base_url: without `/v1`. model: "" asks the server which one it has.

    All times are seconds after `begin` was called.
    """

    def __init__(self, base_url: str, backend: Backend, *, model: str = "", api_key: str = "") -> None:
        address = base_url.rstrip("/").removesuffix("/v1")
        if not address.startswith(("http://", "https://")):
            raise UsageError(f"the base URL {base_url!r} cannot be used; it begins with http:// or https://")
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self.backend: Backend = backend
        self.model = model
        self._client = httpx.AsyncClient(
            base_url=address,
            headers=headers,
            timeout=PATIENCE_SECONDS,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )
        self._decoder = msgspec.json.Decoder(_Chunk)
        self._began = time.perf_counter()

    def begin(self) -> None:
        """Time 0 is now."""
        self._began = time.perf_counter()

    def now(self) -> float:
        """Seconds since `begin`."""
        return time.perf_counter() - self._began

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def find_model(self) -> str:
        """The model to ask for, from the server's list when none was given. Raises LongspanError."""
        if not self.model:
            try:
                response = await self._client.get("/v1/models")
                self.model = str(response.raise_for_status().json()["data"][0]["id"])
            except (httpx.HTTPError, LookupError, TypeError, ValueError) as error:
                raise LongspanError(
                    f"{self._client.base_url} does not say which model it has ({error}). "
                    "Is the server running? If it has no /v1/models, name the model."
                ) from error
        return self.model

    async def metrics(self) -> str | None:
        """The text of `/metrics`, or None where there is none."""
        try:
            response = await self._client.get("/metrics")
        except httpx.HTTPError:
            return None
        return response.text if response.status_code == 200 else None

    async def ask(
        self, messages: Sequence[dict[str, str]], sampling: Sampling, *, due: float, category: str = ""
    ) -> LoadAnswer:
        """Send one request, and follow its stream to the end. What goes wrong stands in the answer's `error`."""
        sent = self.now()
        reading = _Reading()
        try:
            async with self._client.stream(
                "POST", PATHS[self.backend], content=self._body(messages, sampling)
            ) as response:
                if response.status_code != 200:
                    text = (await response.aread()).decode("utf-8", "replace")
                    raise LongspanError(f"the server answered {response.status_code}: {text[:300]}")
                async for data in _events(response):
                    reading.take(self._decoder.decode(data), self.now())
        except (httpx.HTTPError, msgspec.DecodeError, LongspanError) as error:
            reading.error = str(error) or type(error).__name__
        return reading.answer(due, sent, category)

    def _body(self, messages: Sequence[dict[str, str]], sampling: Sampling) -> bytes:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.backend == "openai":
            body["prompt"] = "\n\n".join(message["content"] for message in messages)
        else:
            body["messages"] = list(messages)
        if sampling.ignore_eos:
            body["ignore_eos"] = True
        return msgspec.json.encode(body | sampling.extra)


class _Reading:
    """An answer while it comes."""

    def __init__(self) -> None:
        self.error = ""
        self._chunks: list[float] = []
        self._texts: list[str] = []
        self._usage: _Usage | None = None
        self._finish_reason = ""
        self._metrics: dict[str, Any] = {}

    def take(self, chunk: _Chunk, now: float) -> None:
        """One event of the stream."""
        if chunk.error:
            raise LongspanError(f"the server broke the answer off: {chunk.error}")
        for choice in chunk.choices:
            delta = choice.delta
            text = choice.text or (delta and (delta.content or delta.reasoning_content or delta.reasoning)) or ""
            if text:
                self._chunks.append(now)
                self._texts.append(text)
            self._finish_reason = choice.finish_reason or self._finish_reason
        self._usage = chunk.usage or self._usage
        self._metrics = chunk.metrics or self._metrics

    def answer(self, due: float, sent: float, category: str) -> LoadAnswer:
        """All of it. Without usage from the server, a chunk counts as one token."""
        usage = self._usage or _Usage(0, len(self._chunks))
        error = self.error or ("" if self._chunks else "the server answered without any text")
        return LoadAnswer(
            due=due,
            sent=sent,
            chunks=tuple(self._chunks),
            prompt_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            text="".join(self._texts),
            finish_reason=self._finish_reason,
            error=error,
            category=category,
            metrics=self._metrics,
        )


async def _events(response: httpx.Response) -> AsyncIterator[bytes]:
    """The data of a response's server-sent events, without the closing one."""
    rest = b""
    async for part in response.aiter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(_DATA) and (data := line[len(_DATA) :].strip()) and data != _END:
                yield data
