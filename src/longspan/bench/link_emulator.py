"""A TCP forwarder that delays what it carries: the same emulated distance for programs that are not ours."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from longspan.ring.listening import stop_listening

READ_BYTES = 1 << 18
MOST_WAITING = 1024
"""Pieces under way in one direction; then the sender is made to wait, as a full link would."""


@contextlib.asynccontextmanager
async def delayed_link(host: str, port: int, delay_ms: float) -> AsyncIterator[int]:
    """A port of this machine whose connections reach host:port, each direction `delay_ms` late. Order is kept."""
    connections: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        ends = [writer]
        try:
            with contextlib.suppress(OSError):
                far_reader, far_writer = await asyncio.open_connection(host, port)
                ends.append(far_writer)
                delay = delay_ms / 1000
                await asyncio.gather(_one_way(reader, far_writer, delay), _one_way(far_reader, writer, delay))
        finally:
            connections.discard(task)
            for end in ends:
                end.close()

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        await stop_listening(server)
        for connection in list(connections):
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _one_way(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    """Bytes in order, each `delay` seconds after it was read. An end is passed on too."""
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MOST_WAITING)

    async def read() -> None:
        while data := await reader.read(READ_BYTES):
            await waiting.put((time.perf_counter() + delay, data))
        await waiting.put((time.perf_counter() + delay, b""))

    async def write() -> None:
        while True:
            due, data = await waiting.get()
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            if not data:
                with contextlib.suppress(OSError):
                    writer.write_eof()
                return
            writer.write(data)
            await writer.drain()

    await asyncio.gather(read(), write())
