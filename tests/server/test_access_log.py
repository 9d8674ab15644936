"""The access log: JSON lines, and nothing of what was said."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import httpx
import pytest

from longspan.model.tokenizer import Tokenizer
from longspan.server import ServerOptions, access_log
from tests.server.conftest import running_server
from tests.server.scripted_engine import ScriptedEngine


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What the logger writes."""
    found: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler = Collector()
    access_log.logger.addHandler(handler)
    access_log.logger.setLevel(logging.INFO)
    yield found
    access_log.logger.removeHandler(handler)
    access_log.logger.setLevel(logging.NOTSET)


def test_one_line_a_request(tokenizer: Tokenizer, lines: list[str]) -> None:
    engine = ScriptedEngine(tokenizer)
    with running_server(engine, ServerOptions(access_log=True)) as url, httpx.Client(base_url=url) as client:
        body = {"model": "default", "messages": [{"role": "user", "content": "private words"}]}
        client.post("/v1/chat/completions?key=secret", json=body, headers={"x-request-id": "r1"})
        client.post("/v1/chat/completions", json={**body, "stream": True})
        client.get("/nothing")
    whole, streamed, missing = map(json.loads, lines)
    assert whole["request_id"] == "r1"
    assert (whole["method"], whole["path"], whole["status"]) == ("POST", "/v1/chat/completions", 200)
    assert whole["client"] == "127.0.0.1"
    assert whole["duration_ms"] > 0
    assert streamed["sent_bytes"] > whole["sent_bytes"] > 100
    assert missing["status"] == 404
    assert not any(word in line for line in lines for word in ("private", "secret"))


def test_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    access_log.log_accesses_to_standard_error()
    access_log.log_accesses_to_standard_error()
    try:
        access_log.logger.info("%s", '{"a":1}')
        assert capsys.readouterr().err == '{"a":1}\n'
    finally:
        access_log.logger.handlers.clear()
        access_log.logger.setLevel(logging.NOTSET)
        access_log.logger.propagate = True
