"""/openapi.json and /docs."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import httpx
import msgspec
from starlette.routing import Route

from longspan.server import create_app
from longspan.server.dashboard.endpoints import PAGE_PATHS
from longspan.server.openapi import OPERATIONS, openapi
from tests.server.scripted_engine import ScriptedEngine

UNDOCUMENTED = {"/openapi.json", "/docs", "/dashboard/events"} | PAGE_PATHS


def test_every_route_is_documented(engine: ScriptedEngine) -> None:
    routes = {
        (method.lower(), route.path.replace(":path", ""))
        for route in create_app(engine).routes
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD" and route.path not in UNDOCUMENTED
    }
    assert routes == {(operation.method, operation.path) for operation in OPERATIONS}


def test_the_document_holds_together(client: httpx.Client) -> None:
    text = client.get("/openapi.json").text
    document = msgspec.json.decode(text)
    assert document == msgspec.json.decode(msgspec.json.encode(openapi()))
    assert document["openapi"].startswith("3.1")
    schemas = document["components"]["schemas"]
    assert set(re.findall(r'"\$ref":"#/components/schemas/([^"]+)"', text)) <= set(schemas)
    assert schemas["ChatRequest"]["additionalProperties"] is False
    assert schemas["ChatRequest"]["required"] == ["model", "messages"]
    # What is refused is not offered.
    assert schemas["ChatRequest"]["properties"]["functions"] == {"enum": [None, []]}
    assert schemas["MessagesRequest"]["properties"]["container"] == {"enum": [None]}
    # Without descriptions nobody knows what a field means.
    assert all(schema.get("description") for schema in schemas.values())


def test_what_is_answered_is_what_is_documented(client: httpx.Client, engine: ScriptedEngine) -> None:
    messages = [{"role": "user", "content": "hi"}]
    bodies = {
        "/v1/chat/completions": {"model": "default", "messages": messages, "logprobs": False},
        "/v1/completions": {"model": "default", "prompt": "hi"},
        "/v1/responses": {"model": "default", "input": "hi"},
        "/v1/messages": {"model": "default", "messages": messages, "max_tokens": 4},
        "/v1/messages/count_tokens": {"model": "default", "messages": messages},
        "/tokenize": {"prompt": "hi"},
        "/detokenize": {"tokens": [5]},
    }
    schemas = openapi()["components"]["schemas"]
    engine.members.append("default")
    for operation in OPERATIONS:
        path = operation.path.replace("{name}", "default")
        body = bodies.get(operation.path)
        response = client.request(operation.method, path, json=body)
        assert response.status_code == (204 if operation.method == "delete" else 200), (path, response.text)
        if operation.answer is not None:
            schema = schemas[operation.answer.__name__]
            answer = response.json()
            assert set(answer) <= set(schema["properties"])
            assert set(schema["required"]) <= set(answer)


def test_the_page_loads_nothing(client: httpx.Client) -> None:
    response = client.get("/docs")
    assert response.headers["content-type"].startswith("text/html")
    assert response.headers["content-security-policy"].startswith("default-src 'none'")
    page = Page()
    page.feed(response.text)
    assert not page.loads
    assert "/v1/chat/completions" in response.text
    assert page.links - {"openapi.json"} <= {f"#{name}" for name in page.names}
    assert not page.open


class Page(HTMLParser):
    """What a page loads and where it links to; whether its elements are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: set[str] = set()
        self.links: set[str] = set()
        self.names: set[str] = set()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag in ("script", "img", "link", "iframe") or "src" in given:
            self.loads.add(tag)
        if tag == "a":
            self.links.add(given["href"] or "")
        if given.get("id"):
            self.names.add(given["id"] or "")
        if tag not in ("meta", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
