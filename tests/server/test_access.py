"""Who may ask: API keys, pages in a browser, and bodies that take their time."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from longspan.errors import UsageError
from longspan.model.tokenizer import Tokenizer
from longspan.server import ServerOptions
from longspan.server.api_keys import checked_keys, keys_of_file
from tests.server.conftest import running_server
from tests.server.scripted_engine import ScriptedEngine

PAGE = "https://chat.example"


def test_either_header_carries_a_key(engine: ScriptedEngine) -> None:
    with running_server(engine, ServerOptions(api_keys=("sk-one",))) as url:
        for headers, status in (
            ({"authorization": "Bearer sk-one"}, 200),
            ({"x-api-key": "sk-one"}, 200),
            ({"authorization": "Bearer sk-two", "x-api-key": "sk-one"}, 401),
            ({"authorization": "Basic c2stb25l"}, 401),
            ({"authorization": "Bearer \xe4".encode("latin-1").decode("latin-1")}, 401),
            ({"x-api-key": "sk-on"}, 401),
            ({}, 401),
        ):
            encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
            assert httpx.get(f"{url}/v1/models", headers=encoded).status_code == status, headers
        for path in ("/health", "/ready", "/docs", "/openapi.json"):
            assert httpx.get(url + path).status_code == 200
        for path in ("/metrics", "/ring", "/version", "/v1/nothing"):
            assert httpx.get(url + path).status_code == 401


def test_keys_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\nsk-one\n\n  sk-two  \n")
    assert keys_of_file(path) == ("sk-one", "sk-two")
    path.write_text("# none yet\n\n")
    with pytest.raises(UsageError, match="holds no API key"):
        keys_of_file(path)
    with pytest.raises(UsageError, match="cannot read"):
        keys_of_file(tmp_path / "missing")
    assert checked_keys(["sk-one"]) == ("sk-one",)
    for wrong in ("", "a b", "schlüssel", "a\n"):
        with pytest.raises(UsageError, match="API key 2"):
            checked_keys(["sk-one", wrong])


def test_pages_in_a_browser(engine: ScriptedEngine) -> None:
    options = ServerOptions(cors_origins=(PAGE,), api_keys=("sk-one",))
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    with running_server(engine, options) as url, httpx.Client(base_url=url) as client:
        path = "/v1/chat/completions"
        allowed = client.options(path, headers={"origin": PAGE, **asks})
        assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, PAGE)
        assert client.options(path, headers={"origin": "https://other.example", **asks}).status_code == 400
        # A page may read why it was refused, and when to come back.
        refused = client.post(path, headers={"origin": PAGE})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)
        assert "retry-after" in refused.headers["access-control-expose-headers"]
        assert "access-control-allow-origin" not in client.get("/health").headers


def test_no_page_may_ask_unless_told(client: httpx.Client) -> None:
    response = client.get("/v1/models", headers={"origin": PAGE})
    assert "access-control-allow-origin" not in response.headers
    assert client.options("/v1/models", headers={"origin": PAGE}).status_code == 405


def test_a_body_that_does_not_come(tokenizer: Tokenizer) -> None:
    options = ServerOptions(receive_timeout_seconds=0.2)
    with running_server(ScriptedEngine(tokenizer), options) as url, socket.socket() as connection:
        where = urlsplit(url)
        connection.settimeout(10)
        connection.connect((where.hostname, where.port))
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        answer = b""
        while part := connection.recv(10_000):
            answer += part
        assert answer.startswith(b"HTTP/1.1 408")
        assert b'"code":"body_timeout"' in answer
