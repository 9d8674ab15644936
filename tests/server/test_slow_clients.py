"""A crowd that connects and says nothing, or says it very slowly, keeps nobody out."""

from __future__ import annotations

import contextlib
import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest

from longspan.model.tokenizer import Tokenizer
from longspan.server import ServerOptions, http_protocol
from tests.server.conftest import running_server
from tests.server.scripted_engine import ScriptedEngine

BEGINNING = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-slow: "


def connected(url: str) -> socket.socket:
    where = urlsplit(url)
    assert where.hostname is not None and where.port is not None
    connection = socket.create_connection((where.hostname, where.port), timeout=10)
    connection.settimeout(10)
    return connection


def test_a_port_scan_and_a_slow_loris_leave_the_http_port_unharmed(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "MAX_SILENT", 20)
    with running_server(ScriptedEngine(tokenizer), ServerOptions()) as url, contextlib.ExitStack() as stack:
        for number in range(60):
            with connected(url) as scan:
                scan.sendall(b"\x16\x03\x01"[: number % 4])
        slow = [stack.enter_context(connected(url)) for _ in range(60)]
        with httpx.Client(base_url=url, timeout=10) as client:
            for byte in BEGINNING[:20]:
                for connection in slow:
                    with contextlib.suppress(OSError):
                        connection.send(bytes([byte]))
                assert client.get("/health").status_code == 200
            answer = client.post("/v1/completions", json={"model": "default", "prompt": "a", "max_tokens": 2})
            assert answer.status_code == 200
        closed = 0
        for connection in slow:
            connection.settimeout(0.02)
            with contextlib.suppress(TimeoutError):
                try:
                    closed += connection.recv(1) == b""
                except ConnectionError:
                    closed += 1
        assert 38 <= closed <= 60


def test_headers_that_do_not_come_to_an_end_are_not_waited_for(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEADER_SECONDS", 0.4)
    with running_server(ScriptedEngine(tokenizer), ServerOptions()) as url:
        for first in (b"", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"):
            with connected(url) as connection:
                if first:
                    connection.sendall(first)
                    assert connection.recv(10_000).startswith(b"HTTP/1.1 200")
                started = time.monotonic()
                with contextlib.suppress(OSError):
                    for byte in BEGINNING * 3:
                        connection.sendall(bytes([byte]))
                        time.sleep(0.02)
                assert 0.3 < time.monotonic() - started < 2.0


def test_a_connection_that_waits_between_two_requests_is_kept(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEADER_SECONDS", 0.1)
    with running_server(ScriptedEngine(tokenizer), ServerOptions()) as url, connected(url) as connection:
        for _ in range(3):
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            time.sleep(0.25)
            assert connection.recv(10_000).startswith(b"HTTP/1.1 200")
