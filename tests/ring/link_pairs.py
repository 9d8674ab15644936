"""Two connected ends of every kind of link."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from longspan.ring.delay import DelayedLink
from longspan.ring.dial import connect
from longspan.ring.in_process import pair
from longspan.ring.link import Link
from longspan.ring.tcp import TcpLink

Ends = tuple[Link, Link]


@contextlib.asynccontextmanager
async def listening(on_connected: Callable[[TcpLink], None]) -> AsyncIterator[int]:
    """A server whose links go to `on_connected`; its port."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: TcpLink(on_connected), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@contextlib.asynccontextmanager
async def tcp_ends() -> AsyncIterator[tuple[TcpLink, TcpLink]]:
    """The end that connected and the end that was connected to, past their handshake."""
    accepted: asyncio.Future[TcpLink] = asyncio.get_running_loop().create_future()
    async with listening(accepted.set_result) as port:
        left = await connect("127.0.0.1", port, 5.0)
        right = await accepted
    for end in (left, right):
        end.open_payloads()
    try:
        yield left, right
    finally:
        await asyncio.gather(left.close(), right.close())


@contextlib.asynccontextmanager
async def raw_end() -> AsyncIterator[tuple[socket.socket, TcpLink]]:
    """A plain socket connected to a link that is still in its handshake."""
    accepted: asyncio.Future[TcpLink] = asyncio.get_running_loop().create_future()
    async with listening(accepted.set_result) as port:
        plain = socket.socket()
        plain.setblocking(False)
        await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", port))
        link = await accepted
    try:
        yield plain, link
    finally:
        plain.close()
        await link.close()


@contextlib.asynccontextmanager
async def in_process_ends() -> AsyncIterator[Ends]:
    left, right = pair()
    yield left, right
    await asyncio.gather(left.close(), right.close())


@contextlib.asynccontextmanager
async def delayed_ends(ends: Callable[[], AbstractAsyncContextManager[Ends]]) -> AsyncIterator[Ends]:
    """Both directions 5 ms long."""
    async with ends() as (left, right):
        far = DelayedLink(left, 0.005), DelayedLink(right, 0.005)
        try:
            yield far
        finally:
            await asyncio.gather(*(end.close() for end in far))


@contextlib.asynccontextmanager
async def delayed_tcp_ends() -> AsyncIterator[Ends]:
    async with delayed_ends(tcp_ends) as ends:
        yield ends


@contextlib.asynccontextmanager
async def delayed_in_process_ends() -> AsyncIterator[Ends]:
    async with delayed_ends(in_process_ends) as ends:
        yield ends


KINDS: dict[str, Callable[[], AbstractAsyncContextManager[Ends]]] = {
    "tcp": tcp_ends,
    "in process": in_process_ends,
    "delayed tcp": delayed_tcp_ends,
    "delayed in process": delayed_in_process_ends,
}
