"""Links over TCP.

A buffered protocol reads the 20 bytes of a prefix, checks the announced lengths, and then reads the rest of the
frame straight into its own buffer: one allocation and no copy a frame.
"""

from __future__ import annotations

import asyncio
import collections
import os
import socket
from collections.abc import Callable

from longspan.errors import ProtocolError, RingError
from longspan.ring.frame import (
    MAX_HANDSHAKE_HEADER_BYTES,
    MAX_HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    PREFIX,
    Frame,
    Prefix,
    read_prefix,
)
from longspan.ring.link import Link, LinkStatistics

QUEUE_FRAMES = 64
"""Received frames that may wait before the link stops reading from its socket."""


class TcpLink(asyncio.BufferedProtocol, Link):
    """One TCP connection. Made by `connect` or by a server's protocol factory."""

    def __init__(self, on_connected: Callable[[TcpLink], None] | None = None) -> None:
        self.statistics = LinkStatistics()
        # No frame of a handshake is large or carries tensors, so a stranger cannot make us allocate.
        self._max_header_bytes = MAX_HANDSHAKE_HEADER_BYTES
        self._max_payload_bytes = 0
        self._on_connected = on_connected
        self._transport: asyncio.Transport | None = None
        self._frames: collections.deque[Frame] = collections.deque()
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = asyncio.Event()
        self._error: RingError | None = None
        self._reading = True
        self._prefix: Prefix | None = None
        self._buffer = bytearray(PREFIX.size)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._peer = "?"

    def open_payloads(self, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        """The handshake is over: frames may carry up to this many bytes of tensors."""
        self._max_header_bytes = MAX_HEADER_BYTES
        self._max_payload_bytes = max_payload_bytes

    @property
    def peer(self) -> str:
        """Address of the other end."""
        return self._peer

    async def send(self, frame: Frame) -> None:
        """See `Link.send`."""
        while not self._writable.is_set():
            await self._writable.wait()
        if self._transport is None or self._error is not None or self._transport.is_closing():
            raise self._error or RingError(f"the link to {self._peer} is closed")
        parts = frame.parts()
        self._transport.writelines(parts)
        self.statistics.frames_sent += 1
        self.statistics.bytes_sent += sum(map(len, parts))

    async def receive(self) -> Frame:
        """See `Link.receive`."""
        while not self._frames:
            if self._error is not None:
                raise self._error
            self._arrived.clear()
            await self._arrived.wait()
        frame = self._frames.popleft()
        self.statistics.queued = len(self._frames)
        if not self._reading and len(self._frames) < QUEUE_FRAMES // 2 and self._transport is not None:
            self._reading = True
            self._transport.resume_reading()
        return frame

    async def close(self) -> None:
        """See `Link.close`. Frames already sent are still written, for at most a second."""
        if self._transport is None:
            return
        self._transport.close()
        try:
            async with asyncio.timeout(1.0):
                await self._closed.wait()
        except TimeoutError:
            self.abort()

    def abort(self) -> None:
        """Close both directions at once; what was not written yet is lost."""
        if self._transport is not None:
            self._transport.abort()

    # What asyncio calls:

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up the socket."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        host, port, *_ = transport.get_extra_info("peername") or ("?", 0)
        self._peer = f"{host}:{port}"
        if self._on_connected is not None:
            self._on_connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake whoever waits."""
        self._fail(
            RingError(f"the link to {self._peer} was {'lost: ' + str(exc) if exc else 'closed by the peer'}")
        )
        self._closed.set()

    def pause_writing(self) -> None:
        """The send buffer is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The send buffer has room again."""
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived."""
        self._filled += nbytes
        self.statistics.bytes_received += nbytes
        if self._filled < len(self._buffer):
            return
        try:
            self._complete()
        except ProtocolError as error:
            self._fail(error)
            self.abort()

    def _complete(self) -> None:
        if self._prefix is None:
            self._prefix = read_prefix(self._buffer, self._max_header_bytes, self._max_payload_bytes)
            size = self._prefix.header_bytes + self._prefix.payload_bytes
            if size:
                self._expect(size)
                return
            self._buffer = bytearray()
        prefix, data = self._prefix, memoryview(self._buffer)
        self._prefix = None
        self._expect(PREFIX.size)
        self._frames.append(Frame(prefix.kind, bytes(data[: prefix.header_bytes]), data[prefix.header_bytes :]))
        self.statistics.frames_received += 1
        self.statistics.queued = len(self._frames)
        if len(self._frames) >= QUEUE_FRAMES and self._reading and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()
        self._arrived.set()

    def _expect(self, size: int) -> None:
        self._buffer = bytearray(size)
        self._view = memoryview(self._buffer)
        self._filled = 0

    def _fail(self, error: RingError) -> None:
        if self._error is None:
            self._error = error
        self._writable.set()
        self._arrived.set()


async def connect(host: str, port: int, timeout: float) -> TcpLink:
    """Open a link. Raises RingError that names the address when nobody answers within `timeout` seconds."""
    link = TcpLink()
    connected = False
    try:
        # Not wait_for: before Python 3.12 it may answer a cancellation with a result or with another error.
        async with asyncio.timeout(timeout):
            await asyncio.get_running_loop().create_connection(lambda: link, host, port)
        connected = True
    except TimeoutError:
        raise RingError(
            f"no answer from {host}:{port} within {timeout:g} s. Is `longspan stage --listen` running there, "
            "and does the firewall let the port through?"
        ) from None
    except OSError as error:
        raise RingError(
            f"cannot reach {host}:{port}: {_reason(error)}. Is `longspan stage --listen` running there?"
        ) from None
    except (ValueError, OverflowError) as error:
        # A name that no host can have, or a port that does not exist.
        raise RingError(f"cannot reach {host}:{port}: this is not an address ({error})") from None
    finally:
        if not connected:
            link.abort()  # nobody else knows of it
    return link


def _reason(error: OSError) -> str:
    """The system's own words; asyncio puts others in their place."""
    if error.errno is None or isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno)
