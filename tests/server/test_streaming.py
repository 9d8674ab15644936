"""Clients that leave, stall or wait, and a server that stops under them."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from longspan.model.tokenizer import Tokenizer
from longspan.request import Piece
from longspan.server import ServerOptions
from tests.server.conftest import running_server
from tests.server.scripted_engine import ScriptedEngine

BODY = {"model": "default", "messages": [{"role": "user", "content": "hi"}]}


def eventually(condition: Callable[[], Any], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)


@contextlib.contextmanager
def raw_request(url: str, body: dict[str, Any], *, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    """A connection on which the request has been sent."""
    where = urlsplit(url)
    with socket.socket() as connection:
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(10)
        connection.connect((where.hostname, where.port))
        data = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        yield connection


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_leaves_is_cancelled_at_once(
    client: httpx.Client, engine: ScriptedEngine, streamed: bool, n: int
) -> None:
    engine.script = lambda request: [Piece("a", (5,)), 20.0]
    with raw_request(str(client.base_url), {**BODY, "stream": streamed, "n": n}) as connection:
        eventually(lambda: len(engine.streams) == n and all(stream.given for stream in engine.streams))
        if streamed:
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    eventually(lambda: all(stream.cancelled for stream in engine.streams), seconds=1)


def test_a_client_that_leaves_before_the_first_token(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = lambda request: [20.0]
    with raw_request(str(client.base_url), {**BODY, "stream": True}):
        eventually(lambda: engine.streams)
    eventually(lambda: engine.streams[0].cancelled, seconds=1)


def test_a_client_that_leaves_while_it_sends(client: httpx.Client, engine: ScriptedEngine) -> None:
    where = urlsplit(str(client.base_url))
    with socket.create_connection((where.hostname, where.port)) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n{")
    assert client.get("/health").status_code == 200
    assert not engine.requests


def test_a_finished_answer_is_not_cancelled(client: httpx.Client, engine: ScriptedEngine) -> None:
    for streamed in (False, True):
        client.post("/v1/chat/completions", json={**BODY, "stream": streamed})
    client.get("/health")
    assert [stream.cancelled for stream in engine.streams] == [False, False]


def test_a_client_that_takes_nothing_holds_up_nothing(tokenizer: Tokenizer) -> None:
    engine = ScriptedEngine(tokenizer)
    pieces = 20_000
    engine.script = lambda request: [Piece("x" * 500, (5,)) for _ in range(pieces)]
    options = ServerOptions(send_timeout_seconds=0.5)
    with (
        running_server(engine, options) as url,
        httpx.Client(base_url=url) as client,
        raw_request(url, {**BODY, "stream": True}, receive_buffer=4096),
    ):
        eventually(lambda: engine.streams and engine.streams[0].given > 10)
        taken = -1
        while taken != engine.streams[0].given:
            taken = engine.streams[0].given
            time.sleep(0.1)
        # What the sockets buffer is all that has left the engine's stream.
        assert taken < pieces / 2
        engine.script = lambda request: [Piece("quick", (5,), finish_reason="stop")]
        answer = client.post("/v1/chat/completions", json=BODY).json()
        assert answer["choices"][0]["message"]["content"] == "quick"
        eventually(lambda: engine.streams[0].cancelled)


def test_heartbeats_while_there_is_nothing_to_say(tokenizer: Tokenizer) -> None:
    engine = ScriptedEngine(tokenizer)
    engine.script = lambda request: [0.35, Piece("late", (5,), finish_reason="stop")]
    with (
        running_server(engine, ServerOptions(heartbeat_seconds=0.1)) as url,
        httpx.Client(base_url=url) as client,
    ):
        response = client.post("/v1/chat/completions", json={**BODY, "stream": True})
    first, second, *_ = events = response.text.split("\n\n")
    assert first == second == ": waiting"
    assert '"content":"late"' in events[-3]


def test_pieces_arrive_when_they_are_made(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = lambda request: [Piece("a", (5,)), 0.3, Piece("b", (6,), finish_reason="stop")]
    times: dict[str, float] = {}
    with client.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as response:
        for line in response.iter_lines():
            for text in ("a", "b"):
                if f'"content":"{text}"' in line:
                    times[text] = time.monotonic()
    assert times["b"] - times["a"] > 0.2


def test_open_requests_get_to_know_that_the_server_stops(tokenizer: Tokenizer) -> None:
    engine = ScriptedEngine(tokenizer)
    engine.script = lambda request: [Piece("a", (5,)), 60.0]
    with contextlib.ExitStack() as stack:
        with running_server(engine, ServerOptions()) as url:
            streaming = stack.enter_context(raw_request(url, {**BODY, "stream": True}))
            waiting = stack.enter_context(raw_request(url, BODY))
            eventually(lambda: len(engine.streams) == 2 and all(stream.given for stream in engine.streams))
        for connection, status in ((streaming, b"200"), (waiting, b"503")):
            answer = connection.makefile("rb").read()
            assert answer.startswith(b"HTTP/1.1 " + status)
            assert b"The server is stopping." in answer
    assert all(stream.cancelled for stream in engine.streams)
