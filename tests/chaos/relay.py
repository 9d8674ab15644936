"""A TCP relay that does to a link what bad networks do: cut it, stall it, close half of it, change a byte."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import socket

NARROW_CHUNK = 1 << 12
RECEIVE_BUFFER = 1 << 14


@dataclasses.dataclass(eq=False)
class _Pipe:
    """One direction of one connection."""

    writer: asyncio.StreamWriter
    corrupt: bool = False


class Relay:
    """Listens at `port` and passes connections on to `target`. Faults touch the connections of their moment."""

    def __init__(self, target: int, seed: int = 0) -> None:
        self.target = target
        self.port = 0
        self._random = random.Random(seed)
        self._server: asyncio.Server | None = None
        self._pipes: set[_Pipe] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._rate: float | None = None

    async def start(self) -> None:
        """Listen on any free port."""
        listener = socket.socket()
        # Connections inherit it; with the buffers that Linux gives, nothing ever fills a link of a tiny model.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        listener.bind(("127.0.0.1", 0))
        self._server = await asyncio.start_server(self._connected, sock=listener, limit=NARROW_CHUNK)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and cut everything."""
        self._flows.set()
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def connections(self) -> int:
        """Connections that pass now."""
        return len(self._pipes) // 2

    def cut(self) -> None:
        """End every connection with a reset."""
        for pipe in tuple(self._pipes):
            pipe.writer.transport.abort()

    async def stall(self, seconds: float) -> None:
        """Nothing passes for a while, also of new connections; nothing is lost."""
        self._flows.clear()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._flows.set()

    def narrow(self, rate: float) -> None:
        """Let so many bytes a second through each direction of each connection, until `widen`: what cannot pass
        waits with whoever sends it."""
        self._rate = rate

    def widen(self) -> None:
        """Let everything through at once again."""
        self._rate = None

    def half_close(self) -> bool:
        """Close one direction of one connection; the other stays open. False when there is none."""
        pipe = self._some_pipe()
        if pipe is None or not pipe.writer.can_write_eof():
            return False
        with contextlib.suppress(OSError):
            pipe.writer.write_eof()
        return True

    def corrupt(self) -> bool:
        """Change one bit of the next bytes that pass in one direction. False when there is no connection."""
        pipe = self._some_pipe()
        if pipe is not None:
            pipe.corrupt = True
        return pipe is not None

    def _some_pipe(self) -> _Pipe | None:
        pipes = [pipe for pipe in self._pipes if not pipe.writer.is_closing()]
        return self._random.choice(pipes) if pipes else None

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target, limit=NARROW_CHUNK)
        except OSError:
            writer.transport.abort()
            return
        finally:
            self._tasks.discard(task)
        self._tasks.add(task)
        there, back = _Pipe(far_writer), _Pipe(writer)
        self._pipes |= {there, back}
        try:
            await asyncio.gather(self._pass(reader, there), self._pass(far_reader, back))
        except asyncio.CancelledError:
            return  # the relay closes
        finally:
            self._pipes -= {there, back}
            for end in (writer, far_writer):
                end.transport.abort()
            self._tasks.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, pipe: _Pipe) -> None:
        try:
            while data := await reader.read(NARROW_CHUNK if self._rate else 1 << 16):
                await self._flows.wait()
                if self._rate:
                    await asyncio.sleep(len(data) / self._rate)
                if pipe.corrupt:
                    pipe.corrupt = False
                    changed = bytearray(data)
                    changed[self._random.randrange(len(changed))] ^= 1 << self._random.randrange(8)
                    data = bytes(changed)
                pipe.writer.write(data)
                await pipe.writer.drain()
            if pipe.writer.can_write_eof():
                pipe.writer.write_eof()
        except (OSError, RuntimeError):
            pipe.writer.transport.abort()
            # The other direction ends with it, as with a connection that is lost.
            for other in tuple(self._pipes):
                if other is not pipe and other.writer.transport.is_closing():
                    other.writer.transport.abort()
