"""Bodies and headers that are not as they should be: a JSON error of the right status, and the server lives."""

from __future__ import annotations

import contextlib
import faulthandler
import http.client
import json
import random
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import pytest

from longspan.model.tokenizer import Tokenizer
from longspan.server import ServerOptions
from longspan.server.http_protocol import HEADER_BYTES
from tests.server.conftest import running_server
from tests.server.scripted_engine import ScriptedEngine

MESSAGES: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "default",
        "messages": MESSAGES,
        "temperature": 0.5,
        "stop": ["x"],
        "logit_bias": {"5": 1},
        "n": 2,
    },
    "/v1/completions": {"model": "default", "prompt": ["a", "b"], "max_tokens": 4, "logprobs": 1, "seed": 3},
    "/v1/responses": {
        "model": "default",
        "input": MESSAGES,
        "text": {"format": {"type": "text"}},
        "include": [],
        "metadata": {"a": "b"},
    },
    "/v1/messages": {
        "model": "default",
        "messages": MESSAGES,
        "max_tokens": 4,
        "system": "x",
        "stop_sequences": ["x"],
    },
    "/v1/messages/count_tokens": {"model": "default", "messages": MESSAGES},
    "/tokenize": {"messages": MESSAGES, "add_generation_prompt": True},
    "/detokenize": {"tokens": [5, 6, 7]},
}
PATHS = list(VALID)
REPLACEMENTS: list[Any] = [
    *(None, True, -1, 0, 1 << 70, 1e308, "", "\x00", "\ud800", "x" * 3000, [], {}, [[]], [None], [{}]),
    *({"": {}}, {"role": "user"}, [1, "a"], {"type": "text"}, [[[[[[]]]]]], "\u202e𝕏", 0.5),
]
BAD_HEADERS = [
    b"content-length: -1",
    b"content-length: abc",
    b"content-length: 10\r\ncontent-length: 20",
    b"content-length: 99999999999999999999999999",
    b"transfer-encoding: gzip",
    b"transfer-encoding: chunked, chunked",
    b"no colon here",
    b": no name",
    b"sp ace: x",
    b"nul: a\x00b",
    b"ctl\x01: x",
    b" continued: x",
    b"\xff\xfe: x",
    b"x: " + b"y" * (HEADER_BYTES + 1000),
]
BAD_LINES = [
    b"POST",
    b"POST /v1/completions",
    b"POST /v1/completions HTTP/9.9",
    b"POST  /v1/completions HTTP/1.1",
    b"P\x00ST /v1/completions HTTP/1.1",
    b"\x16\x03\x01\x02\x00\x01\x00\x01",
    b"GET http://[::1 HTTP/1.1",
    b"POST /\xc3\xa4 HTTP/1.1",
    b"PRI * HTTP/2.0",
    b"\x00" * 40,
]


PATIENCE_SECONDS = 150
"""How long an answer may take. A machine whose cores others use with a higher priority has answered after 9 s what
is due after 0.3 s, and once after more than 20; what is waited for then is a core, not the server."""


class Case(NamedTuple):
    """What goes over the wire, and which statuses are right for it."""

    data: bytes
    statuses: frozenset[int]


def cases(seed: int, count: int) -> Iterator[Case]:
    """Malformed requests, the same for the same seed."""
    chance = random.Random(seed)
    kinds = (_cut_off, _garbled, _replaced, _noise, _nested, _header, _line, _chunks, _elsewhere, _short)
    for number in range(count):
        yield kinds[number % len(kinds)](chance)


def _request(path: str, body: bytes, *headers: bytes) -> bytes:
    lines = [b"POST " + path.encode() + b" HTTP/1.1", b"host: x", *headers, b"content-length: %d" % len(body)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _body(chance: random.Random) -> tuple[str, bytes]:
    path = chance.choice(PATHS)
    return path, json.dumps(VALID[path]).encode()


def _cut_off(chance: random.Random) -> Case:
    path, body = _body(chance)
    return Case(_request(path, body[: chance.randrange(len(body))]), frozenset({400}))


def _garbled(chance: random.Random) -> Case:
    """A few bytes are others. What stays JSON may be answered, or name another model or field."""
    path, body = _body(chance)
    changed = bytearray(body)
    for _ in range(chance.randint(1, 4)):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return Case(_request(path, bytes(changed)), frozenset({200, 400, 404}))


def _replaced(chance: random.Random) -> Case:
    """A value somewhere is of another kind, or a field too many."""
    path = chance.choice(PATHS)
    value = json.loads(json.dumps(VALID[path]))
    place: Any = value
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = chance.choice(keys) if keys else "more"
        if keys and isinstance(place[key], dict | list) and place[key] and chance.random() < 0.6:
            place = place[key]
            continue
        break
    if isinstance(place, list):
        place.append(chance.choice(REPLACEMENTS))
    else:
        place[key if chance.random() < 0.8 else "more"] = chance.choice(REPLACEMENTS)
    return Case(_request(path, json.dumps(value).encode()), frozenset({200, 400, 404}))


def _noise(chance: random.Random) -> Case:
    return Case(_request(chance.choice(PATHS), b"\xff" + chance.randbytes(chance.randrange(200))), frozenset({400}))


def _nested(chance: random.Random) -> Case:
    opening = chance.choice((b"[", b'{"a":', b'{"messages":[', b'{"prompt":[', b'{"input":{"x":'))
    size = chance.randrange(1, 19_000 // len(opening))
    return Case(_request(chance.choice(PATHS), opening * size), frozenset({400}))


def _header(chance: random.Random) -> Case:
    path, body = _body(chance)
    header = chance.choice(BAD_HEADERS)
    data = b"POST " + path.encode() + b" HTTP/1.1\r\nhost: x\r\n" + header + b"\r\n\r\n" + body
    return Case(data, frozenset({400, 408, 413, 431, 501}))


def _line(chance: random.Random) -> Case:
    line = chance.choice(BAD_LINES)
    return Case(line + b"\r\nhost: x\r\n\r\n", frozenset({400, 404, 405}))


def _chunks(chance: random.Random) -> Case:
    """Chunked, with a chunk that is not one."""
    path, body = _body(chance)
    bad = chance.choice(
        (b"zz\r\n", b"-5\r\n", b"5\r\nabc", b"fffffffffffffffffffffff\r\n", b"\x00\r\n", b"5;" + b"x" * 99_999)
    )
    head = b"POST " + path.encode() + b" HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    return Case(head + b"%x\r\n" % len(body) + body + b"\r\n" + bad, frozenset({400, 408, 413, 431}))


def _elsewhere(chance: random.Random) -> Case:
    method = chance.choice((b"GET", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"BREW", b"CONNECT"))
    path = chance.choice(
        (b"/v1/chat/completions", b"/nothing", b"/%00", b"/%ff%fe", b"/../etc", b"//", b"/v1/messages/x")
    )
    return Case(method + b" " + path + b" HTTP/1.1\r\nhost: x\r\n\r\n", frozenset({404, 405}))


def _short(chance: random.Random) -> Case:
    """Less comes than was announced, or more than is allowed."""
    path, body = _body(chance)
    if chance.random() < 0.2:
        return Case(_request(path, body[:5]).replace(b"content-length: 5", b"content-length: 9"), frozenset({408}))
    return Case(_request(path, body + b" " * 20_001), frozenset({413}))


def answer_to(address: tuple[str, int], data: bytes) -> tuple[int, str, bytes]:
    """(status, content type, body) of the first answer."""
    with socket.create_connection(address, timeout=PATIENCE_SECONDS) as connection:
        # It may refuse before we are done.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(data)
        response = http.client.HTTPResponse(connection)
        response.begin()
        return response.status, response.headers.get("content-type", ""), response.read()


@pytest.mark.parametrize(
    ("seed", "count"), [(1, 300), pytest.param(2, 10_000, marks=pytest.mark.soak)], ids=["short", "soak"]
)
def test_malformed_requests(tokenizer: Tokenizer, seed: int, count: int) -> None:
    options = ServerOptions(body_limit=20_000, receive_timeout_seconds=0.3)
    seen: set[int] = set()
    with running_server(ScriptedEngine(tokenizer), options) as url:
        where = urlsplit(url)
        assert where.hostname is not None
        assert where.port is not None
        for number, case in enumerate(cases(seed, count)):
            try:
                status, kind, body = answer_to((where.hostname, where.port), case.data)
            except TimeoutError:
                # Where the server's threads stand says whether it hangs.
                faulthandler.dump_traceback()
                pytest.fail(f"case {number}: no answer in {PATIENCE_SECONDS} s to {case.data[:300]!r}")
            told = f"case {number}: {case.data[:300]!r} → {status} {body[:300]!r}"
            assert status in case.statuses, told
            assert kind == "application/json", told
            answer = json.loads(body)
            assert ("error" in answer and answer["error"] is not None) == (status >= 400), told
            assert not any(word in body for word in (b"Traceback", b"site-packages", b"msgspec")), told
            seen.add(status)
        assert httpx.get(f"{url}/health").status_code == 200
    assert {200, 400, 404, 405, 408, 413, 431} <= seen
