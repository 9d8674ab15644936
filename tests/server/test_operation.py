"""What an operator changes while the server runs."""

from __future__ import annotations

import httpx
import pytest
from starlette.testclient import TestClient

from longspan.errors import RingError
from longspan.server import ServerOptions, create_app
from tests.server.conftest import running_server
from tests.server.scripted_engine import ScriptedEngine


def test_a_stage_is_sent_away_by_its_name(client: httpx.Client, engine: ScriptedEngine) -> None:
    joined = client.get("/ring").json()["members"]
    assert joined[0] == {"name": "garage", "address": "192.0.2.0:7000", "stage": 0}
    assert joined[2] == {"name": "cellar", "address": "192.0.2.2:7000", "stage": None}
    answer = client.delete("/ring/stages/attic")
    assert (answer.status_code, answer.content) == (204, b"")
    assert engine.members == ["garage", "cellar"]
    again = client.delete("/ring/stages/attic")
    assert again.status_code == 404
    assert "no stage 'attic' has joined" in again.json()["error"]["message"]
    assert client.get("/ring/stages/attic").status_code == 405


def test_with_api_keys_only_with_one_of_them(engine: ScriptedEngine) -> None:
    with running_server(engine, ServerOptions(api_keys=("secret",))) as url:
        assert httpx.delete(f"{url}/ring/stages/attic").status_code == 401
        assert httpx.delete(f"{url}/ring/stages/attic", headers={"x-api-key": "other"}).status_code == 401
        assert "attic" in engine.members
        assert httpx.delete(f"{url}/ring/stages/attic", headers={"x-api-key": "secret"}).status_code == 204


@pytest.mark.parametrize("host", ["192.0.2.9", "2001:db8::9", "a name"])
def test_without_api_keys_only_from_the_same_machine(engine: ScriptedEngine, host: str) -> None:
    closed = TestClient(create_app(engine), client=(host, 4711))
    answer = closed.delete("/ring/stages/attic")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "operator_only")
    assert "attic" in engine.members
    app = create_app(engine, options=ServerOptions(api_keys=("secret",)))
    far = TestClient(app, client=(host, 4711), headers={"authorization": "Bearer secret"})
    assert far.delete("/ring/stages/attic").status_code == 204


@pytest.mark.parametrize("header", ["Forwarded", "X-Forwarded-For"])
def test_without_api_keys_not_through_a_proxy(client: httpx.Client, engine: ScriptedEngine, header: str) -> None:
    assert client.delete("/ring/stages/attic", headers={header: "127.0.0.1"}).status_code == 403
    assert "attic" in engine.members


def test_while_the_engine_does_not_run(
    client: httpx.Client, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(name: str) -> None:
        raise RingError("the engine is not running")

    monkeypatch.setattr(engine, "remove_stage", gone)
    assert client.delete("/ring/stages/attic").status_code == 503
