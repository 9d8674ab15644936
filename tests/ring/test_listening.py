"""What is accepted last is closed by somebody."""

from __future__ import annotations

import asyncio
import socket

import pytest

from longspan.ring.listening import stop_listening
from longspan.ring.tcp import TcpLink


@pytest.mark.parametrize("rounds", range(4))
async def test_a_connection_accepted_as_the_socket_closes_has_its_protocol(rounds: int) -> None:
    loop = asyncio.get_running_loop()
    accepted: list[TcpLink] = []
    server = await loop.create_server(lambda: TcpLink(accepted.append), "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()) as client:
        for _ in range(rounds):
            await asyncio.sleep(0)
        await stop_listening(server)
        assert not server.sockets
        for _ in range(3):
            await asyncio.sleep(0)
        for link in accepted:
            link.abort()
        client.setblocking(False)
        try:
            assert await asyncio.wait_for(loop.sock_recv(client, 1), 5) == b""
        except ConnectionResetError:
            assert not accepted, "the system hung up, for nobody had accepted"
    assert accepted or rounds < 2, "it was accepted by then"


async def test_twice_is_as_good_as_once() -> None:
    server = await asyncio.get_running_loop().create_server(TcpLink, "127.0.0.1", 0)
    await stop_listening(server)
    await stop_listening(server)
    assert not server.sockets
