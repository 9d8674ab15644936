"""A client in a process of its own that streams completions, and says when they began and ended.

It reads an order a line from standard input and writes its times as a line. What it does for each event is next to
nothing, so that on a machine of few cores it is the server that is measured.
"""

from __future__ import annotations

import asyncio
import sys
import time

import msgspec
import uvloop

_END = b"data: [DONE]\n\n"
_EVENT = b"data: "


class StreamOrder(msgspec.Struct, frozen=True):
    """Stream one completion of `tokens` tokens for each of the prompts (token ids), all at once."""

    host: str
    port: int
    prompts: tuple[tuple[int, ...], ...]
    tokens: int


class StreamTimes(msgspec.Struct, frozen=True):
    """Seconds of one clock, for each stream: when it was asked for, its first event, and its end."""

    asked: tuple[float, ...]
    first: tuple[float, ...]
    last: tuple[float, ...]


async def stream_all(order: StreamOrder) -> StreamTimes:
    """Carry an order out. Raises RuntimeError when an answer is not a stream that ends well."""
    found = await asyncio.gather(*(_stream(order, prompt) for prompt in order.prompts))
    asked, first, last = zip(*found, strict=True)
    return StreamTimes(asked, first, last)


async def _stream(order: StreamOrder, prompt: tuple[int, ...]) -> tuple[float, float, float]:
    body = msgspec.json.encode(
        {
            "model": "default",
            "prompt": prompt,
            "max_tokens": order.tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
    )
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    asked = time.perf_counter()
    reader, writer = await asyncio.open_connection(order.host, order.port)
    first = last = 0.0
    tail = b""
    try:
        writer.write(head.encode() + body)
        while part := await reader.read(65536):
            last = time.perf_counter()
            if not first and _EVENT in part:
                first = last
            tail = (tail + part)[-64:]
    finally:
        writer.close()
    if not first or _END not in tail:
        raise RuntimeError(f"the server ended the stream with {tail!r}")
    return asked, first, last


async def _obey() -> None:
    decoder = msgspec.json.Decoder(StreamOrder)
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        times = await stream_all(decoder.decode(line))
        sys.stdout.buffer.write(msgspec.json.encode(times) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    uvloop.run(_obey())
