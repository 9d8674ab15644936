"""Links over TCP."""

from __future__ import annotations

import asyncio
import collections
import os
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any, cast

from longspan.errors import ProtocolError, RingError
from longspan.ring.frame import MAX_HEADER_BYTES, MAX_PAYLOAD_BYTES, Frame
from longspan.ring.frame_reader import FrameReader
from longspan.ring.link import Link, LinkStatistics
from longspan.ring.link_reason import reason_in_words

QUEUE_FRAMES = 64
"""Received frames that may wait before the link stops reading from its socket."""


class TcpLink(asyncio.BufferedProtocol, Link):
    """One TCP connection. Made by `dial.connect` or by a server's protocol factory."""

    def __init__(self, on_connected: Callable[[TcpLink], None] | None = None, *, expects_tls: bool = False) -> None:
        """expects_tls: what comes before `secure` is the beginning of TLS, and is kept for it."""
        self._expects_tls = expects_tls
        self.statistics = LinkStatistics()
        self._reader = FrameReader()
        self._on_connected = on_connected
        self._taker: Callable[[Frame], bool] | None = None
        self._transport: asyncio.Transport | None = None
        self._frames: collections.deque[Frame] = collections.deque()
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = asyncio.Event()
        self._error: RingError | None = None
        self._reading = True
        # Both threads that may write hold this. Past the loop's back only whole buffers of the socket are filled:
        # what a full one leaves over goes to the loop, and until it is there nobody else writes.
        self._writing = threading.Lock()
        self._descriptor = -1
        self._left_over = False
        self._peer = "?"

    def open_payloads(self, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        """The handshake is over: frames may carry up to this many bytes of tensors."""
        self._reader.max_header_bytes = MAX_HEADER_BYTES
        self._reader.max_payload_bytes = max_payload_bytes

    @property
    def peer(self) -> str:
        """Address of the other end."""
        return self._peer

    async def secure(self, context: ssl.SSLContext, *, server_side: bool, seconds: float) -> None:
        """Speak TLS from here on. Raises RingError that says why not; the link is of no use then."""
        assert self._transport is not None
        with self._writing:
            self._descriptor = -1  # what went past the transport would not be encrypted
        secured = False
        starting: asyncio.Task[asyncio.Transport | None] | None = None
        try:
            early = self._reader.take_raw()
            if self._frames or (early and not self._expects_tls):
                raise ProtocolError(f"{self._peer} spoke before TLS began")
            self._expects_tls = False
            self._transport.pause_reading()  # until `start_tls` reads on
            starting = asyncio.ensure_future(
                self._loop.start_tls(
                    self._transport, self, context, server_side=server_side, ssl_handshake_timeout=seconds
                )
            )
            if early:
                await self._hand_over(early)
            transport = await starting
            if transport is None:
                raise ConnectionAbortedError
            self._transport, secured = transport, True
        except (OSError, RuntimeError) as error:
            raise RingError(f"no TLS with {self._peer}: {reason_in_words(error)}") from None
        finally:
            if not secured:
                if starting is not None:
                    starting.cancel()
                # From here on nobody tells this protocol when the connection ends.
                self._transport.abort()
                self.connection_lost(None)

    async def _hand_over(self, early: bytes) -> None:
        """Give what had come already to the protocol that `start_tls` has put in our place.

        uvloop reads from a new connection before any task of it runs, whatever `connection_made` says.
        """
        assert self._transport is not None
        for _ in range(2):  # the first round puts the protocol there, the second tells it of the connection
            await asyncio.sleep(0)
        protocol = cast(asyncio.BufferedProtocol, self._transport.get_protocol())
        if protocol is self:
            return  # it has failed already, and says why
        while early:
            buffer = memoryview(protocol.get_buffer(len(early)))
            count = min(len(buffer), len(early))
            buffer[:count] = early[:count]
            protocol.buffer_updated(count)
            early = early[count:]

    def peer_certificate(self) -> tuple[dict[str, Any], bytes]:
        """What TLS knows of the other end: the checked certificate (`ssl.SSLSocket.getpeercert`), and its DER."""
        assert self._transport is not None
        tls = self._transport.get_extra_info("ssl_object")
        return tls.getpeercert() or {}, tls.getpeercert(binary_form=True) or b""

    def take_early(self, taker: Callable[[Frame], bool]) -> bool:
        """See `Link.take_early`."""
        self._taker = taker
        return True

    async def send(self, frame: Frame) -> None:
        """See `Link.send`."""
        while not self.send_at_once(frame):
            if self._transport is None or self._error is not None or self._transport.is_closing():
                raise self._error or RingError(f"the link to {self._peer} is closed")
            # What another thread left over is in the transport after this round of the loop.
            await (asyncio.sleep(0) if self._left_over else self._writable.wait())

    def send_at_once(self, frame: Frame) -> bool:
        """See `Link.send_at_once`."""
        if self._transport is None or self._error is not None or self._transport.is_closing():
            return False
        if not self._writable.is_set():
            return False
        parts = frame.parts()
        with self._writing:
            if self._left_over:
                return False
            self._transport.writelines(parts)
            self._count(parts)
        return True

    def send_from_thread(self, frame: Frame) -> bool:
        """See `Link.send_from_thread`."""
        parts = frame.parts()
        with self._writing:
            if self._descriptor < 0 or self._left_over or not self._writable.is_set():
                return False
            assert self._transport is not None
            if self._transport.get_write_buffer_size():
                return False
            try:
                written = os.writev(self._descriptor, parts)
            except OSError:
                return False  # full, or lost: the loop will see which
            if written < sum(map(len, parts)):
                self._left_over = True
                self._loop.call_soon_threadsafe(self._write_rest, b"".join(parts)[written:])
            self._count(parts)
        return True

    def _write_rest(self, rest: bytes) -> None:
        with self._writing:
            self._left_over = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.write(rest)

    def _count(self, parts: list[bytes | memoryview]) -> None:
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
        if not self._reading and len(self._frames) < QUEUE_FRAMES // 2:
            self._go_on()
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
            pass
        finally:
            self.abort()  # also when whoever waits is cancelled; nothing happens when it is closed

    def abort(self) -> None:
        """Close both directions at once; what was not written yet is lost."""
        if self._transport is not None:
            self._transport.abort()

    # What asyncio calls:

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up the socket."""
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._descriptor = connection.fileno()
        host, port, *_ = transport.get_extra_info("peername") or ("?", 0)
        self._peer = f"{host}:{port}"
        if self._on_connected is not None:
            self._on_connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake whoever waits. The socket is closed after this."""
        with self._writing:
            self._descriptor = -1
        self._fail(
            RingError(
                f"the link to {self._peer} was {'lost: ' + reason_in_words(exc) if exc else 'closed by the peer'}"
            )
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
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived."""
        self._reader.filled(nbytes)
        self.statistics.bytes_received += nbytes
        if self._expects_tls:
            assert self._transport is not None
            self._transport.pause_reading()
            return
        self._advance()

    def _go_on(self) -> None:
        """There is room again: first for what was read already, then for more."""
        self._reading = True
        self._advance()
        if self._reading and self._transport is not None:
            self._transport.resume_reading()

    def _advance(self) -> None:
        try:
            while self._reading and (frame := self._reader.next()) is not None:
                self._take(frame)
        except ProtocolError as error:
            self._fail(error)
            self.abort()

    def _take(self, frame: Frame) -> None:
        self.statistics.frames_received += 1
        if self._taker is not None and not self._frames and self._taker(frame):
            return
        self._frames.append(frame)
        self.statistics.queued = len(self._frames)
        if len(self._frames) >= QUEUE_FRAMES and self._reading and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()
        self._arrived.set()

    def _fail(self, error: RingError) -> None:
        if self._error is None:
            self._error = error
        self._writable.set()
        self._arrived.set()
