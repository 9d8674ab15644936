"""/v1/messages: what the engine is asked, and what a client of the Anthropic API gets."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from longspan.errors import LongspanError, QueueFullError, RequestTimeoutError, RingError
from longspan.request import Piece
from longspan.server import ServerOptions
from tests.server.conftest import running_server
from tests.server.events import named_events
from tests.server.scripted_engine import ScriptedEngine, always
from tests.tiny_models import END_TOKEN

HELLO = [{"role": "user", "content": "hi"}]
BODY: dict[str, Any] = {"model": "default", "messages": HELLO, "max_tokens": 20}
PATH = "/v1/messages"
BURSTS = [
    Piece("The ", (5,)),
    Piece("cat", (6, 7)),
    Piece("", (9,)),
    Piece(" sat", (10, END_TOKEN), finish_reason="stop"),
]


def prompt_text(engine: ScriptedEngine) -> str:
    (request,) = engine.requests
    return engine.served.tokenizer.decode(request.prompt, special=True)


def test_a_whole_message(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = lambda request: BURSTS
    response = client.post(PATH, json=BODY)
    answer = response.json()
    assert answer.pop("id").startswith("msg_")
    prompt = len(engine.requests[0].prompt)
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": "Tiny-Model",
        "content": [{"type": "text", "text": "The cat sat", "citations": None}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": prompt - 3,
            "output_tokens": 6,
            "cache_read_input_tokens": 3,
            "cache_creation_input_tokens": 0,
            "cache_creation": None,
            "inference_geo": None,
            "output_tokens_details": None,
            "server_tool_use": None,
            "service_tier": "standard",
        },
        "stop_details": None,
        "container": None,
    }
    assert response.headers["request-id"] == response.headers["x-request-id"]


def test_a_streamed_message(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = lambda request: BURSTS
    response = client.post(PATH, json={**BODY, "stream": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = named_events(response.text)
    assert [name for name, _ in events] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 3,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert all(name == data["type"] for name, data in events)
    start = events[0][1]["message"]
    assert (start["content"], start["stop_reason"], start["usage"]["output_tokens"]) == ([], None, 0)
    assert "".join(data["delta"]["text"] for name, data in events if name == "content_block_delta") == "The cat sat"
    ending = events[-2][1]
    assert ending["delta"] == {
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
    }
    assert ending["usage"]["output_tokens"] == 6
    assert not response.text.endswith("[DONE]\n\n")


def test_an_answer_without_text(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = always(Piece("", (END_TOKEN,)), Piece("", (), finish_reason="stop"))
    assert client.post(PATH, json=BODY).json()["content"] == []
    events = named_events(client.post(PATH, json={**BODY, "stream": True}).text)
    assert [name for name, _ in events] == ["message_start", "message_delta", "message_stop"]


def test_what_ended_it(client: httpx.Client, engine: ScriptedEngine) -> None:
    stops = {**BODY, "stop_sequences": ["xyz", "lazy"]}
    text = "The quick dog is lazy"
    tokens = tuple(engine.served.tokenizer.encode(text, add_special=False, parse_special=False))
    engine.script = always(Piece("The quick dog is ", tokens, finish_reason="stop"))
    answer = client.post(PATH, json=stops).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "lazy")
    assert engine.requests[-1].stop == ("xyz", "lazy")
    events = named_events(client.post(PATH, json={**stops, "stream": True}).text)
    ending = events[-2][1]["delta"]
    assert (ending["stop_reason"], ending["stop_sequence"]) == ("stop_sequence", "lazy")
    # The end token, although strings were given too.
    engine.script = always(Piece("The", (5, END_TOKEN), finish_reason="stop"))
    assert client.post(PATH, json=stops).json()["stop_reason"] == "end_turn"
    engine.script = always(Piece("The", (5,), finish_reason="length"))
    assert client.post(PATH, json=stops).json()["stop_reason"] == "max_tokens"


def test_fields_reach_the_engine(client: httpx.Client, engine: ScriptedEngine) -> None:
    fields = {"temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1, "seed": 3, "priority": -1}
    assert client.post(PATH, json={**BODY, **fields, "metadata": {"user_id": "u"}}).status_code == 200
    (request,) = engine.requests
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 7, 0.9, 0.1)
    assert (request.seed, request.priority, request.max_tokens) == (3, -1, 20)


@pytest.mark.parametrize(
    "content",
    [
        "hi",
        [{"type": "text", "text": "hi"}],
        [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}],
    ],
)
@pytest.mark.parametrize("system", ["be brief", [{"type": "text", "text": "be brief"}]])
def test_the_prompt(client: httpx.Client, engine: ScriptedEngine, content: Any, system: Any) -> None:
    body = {**BODY, "messages": [{"role": "user", "content": content}], "system": system}
    assert client.post(PATH, json=body).status_code == 200
    assert prompt_text(engine) == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_last_message_of_the_assistant_is_continued(client: httpx.Client, engine: ScriptedEngine) -> None:
    body = {**BODY, "messages": [*HELLO, {"role": "assistant", "content": "I sa"}]}
    assert client.post(PATH, json=body).status_code == 200
    assert prompt_text(engine).endswith("<|im_start|>assistant\nI sa")


def test_counting_tokens(client: httpx.Client, engine: ScriptedEngine) -> None:
    body = {"model": "default", "messages": HELLO, "system": "be brief"}
    count = client.post(f"{PATH}/count_tokens", json=body).json()
    assert not engine.requests
    client.post(PATH, json={**BODY, **body})
    assert count == {"input_tokens": len(engine.requests[0].prompt)}
    response = client.post(f"{PATH}/count_tokens", json={**body, "max_tokens": 5})
    assert response.status_code == 400
    assert "max_tokens" in response.json()["error"]["message"]


def text(**fields: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": "x", **fields}]}]


def blocks(role: str, *given: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": role, "content": list(given)}]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"messages": []}, "messages"),
        ({"messages": blocks("user", {"type": "image", "source": {}})}, "messages[0].content[0].type"),
        ({"messages": blocks("user", {"type": "document", "source": {}})}, "messages[0].content[0].type"),
        ({"messages": blocks("user", {"type": "text"})}, "messages[0].content[0].text"),
        ({"messages": text(thinking="x")}, "messages[0].content[0].thinking"),
        ({"messages": text(tone="x")}, "messages[0].content[0].tone"),
        ({"messages": blocks("user", {"type": "tool_use", "id": "1", "name": "f", "input": {}})}, "content[0]"),
        ({"messages": blocks("assistant", {"type": "tool_result", "tool_use_id": "1"})}, "content[0]"),
        ({"system": [{"type": "image", "source": {}}]}, "system[0].type"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 1000}, "1000 for the answer"),
        ({"temperature": 3}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"n": 2}, "n"),
    ],
)
def test_refusals(client: httpx.Client, engine: ScriptedEngine, fields: dict[str, Any], name: str) -> None:
    response = client.post(PATH, json={**BODY, **fields})
    assert response.status_code == 400, response.text
    answer = response.json()
    assert (answer["type"], answer["error"]["type"]) == ("error", "invalid_request_error")
    assert name in answer["error"]["message"]
    assert answer["request_id"] == response.headers["request-id"]
    assert not engine.requests


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (QueueFullError("full", retry_after=2.2), 429, "rate_limit_error"),
        (RingError("stage 1 is missing"), 503, "overloaded_error"),
        (RequestTimeoutError("waited"), 504, "timeout_error"),
        (RuntimeError("secret"), 500, "api_error"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_errors_before_the_first_token(
    client: httpx.Client, engine: ScriptedEngine, error: Exception, status: int, kind: str, streamed: bool
) -> None:
    engine.script = always(error)
    response = client.post(PATH, json={**BODY, "stream": streamed})
    assert response.status_code == status
    assert response.json()["error"]["type"] == kind
    assert ("retry-after" in response.headers) == (status in (429, 503))
    assert "secret" not in response.text


def test_an_error_in_the_middle(client: httpx.Client, engine: ScriptedEngine) -> None:
    failure: LongspanError = RingError("stage 1 was lost")
    engine.script = always(Piece("a", (5,)), failure)
    *_, (name, data) = named_events(client.post(PATH, json={**BODY, "stream": True}).text)
    assert name == data["type"] == "error"
    assert data["error"] == {"type": "overloaded_error", "message": "stage 1 was lost"}


def test_other_refusals_speak_the_dialect_too(client: httpx.Client, engine: ScriptedEngine) -> None:
    unknown = client.post(PATH, json={**BODY, "model": "claude-9"})
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")
    assert client.get(PATH).json()["type"] == "error"
    assert client.get("/v1/nothing", headers={"anthropic-version": "2023-06-01"}).json()["type"] == "error"
    large = client.post(PATH, content=b"x" * 20_001)
    assert (large.status_code, large.json()["error"]["type"]) == (413, "request_too_large")
    with running_server(engine, ServerOptions(api_keys=("sk-one",))) as url:
        refused = httpx.post(url + PATH, json=BODY, headers={"x-api-key": "sk-two"})
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
        assert httpx.post(url + PATH, json=BODY, headers={"x-api-key": "sk-one"}).status_code == 200


def test_models_for_clients_of_the_anthropic_api(client: httpx.Client, engine: ScriptedEngine) -> None:
    headers = {"anthropic-version": "2023-06-01"}
    listed = client.get("/v1/models", headers=headers).json()
    (model,) = listed["data"]
    assert (model["type"], model["id"], listed["has_more"]) == ("model", "Tiny-Model", False)
    assert model["created_at"] == "2023-11-14T22:13:20Z"
    assert client.get("/v1/models/Tiny-Model", headers=headers).json() == model


WEATHER = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


def test_a_call_of_a_tool(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.served.context_length = 4096
    pieces = [Piece(part, (5,)) for part in ("Let me ", "look.\n", CALL[:30], CALL[30:50], CALL[50:])]
    engine.script = always(*pieces, Piece("", (END_TOKEN,), finish_reason="stop"))
    body = {**BODY, "tools": [WEATHER]}
    answer = client.post(PATH, json=body).json()
    text, call = answer["content"]
    assert text["text"].strip() == "Let me look."
    assert call.pop("id").startswith("toolu_")
    caller = {"type": "direct"}
    assert call == {"type": "tool_use", "name": "weather", "input": {"city": "Rome"}, "caller": caller}
    assert answer["stop_reason"] == "tool_use"
    assert "weather" in prompt_text(engine)
    events = named_events(client.post(PATH, json={**body, "stream": True}).text)
    starts = [data["content_block"]["type"] for name, data in events if name == "content_block_start"]
    assert starts == ["text", "tool_use"]
    indices = [data["index"] for name, data in events if name.startswith("content_block")]
    assert indices == sorted(indices)
    parts = [data["delta"] for name, data in events if name == "content_block_delta"]
    arguments = "".join(part["partial_json"] for part in parts if part["type"] == "input_json_delta")
    assert json.loads(arguments) == {"city": "Rome"}
    assert events[-2][1]["delta"]["stop_reason"] == "tool_use"


def test_a_call_that_is_cut_off(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.served.context_length = 4096
    engine.script = always(Piece(CALL[:52], (5,), finish_reason="length"))
    answer = client.post(PATH, json={**BODY, "tools": [WEATHER]}).json()
    assert answer["stop_reason"] == "max_tokens"
    assert "unfinished_arguments" in answer["content"][-1]["input"]


def test_calls_and_their_results_go_back_to_the_model(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.served.context_length = 4096
    conversation = [
        *HELLO,
        *blocks("assistant", {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}}),
        *blocks(
            "user",
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "sunny"}]},
            {"type": "text", "text": "and now?"},
        ),
    ]
    response = client.post(PATH, json={**BODY, "messages": conversation, "tools": [WEATHER]})
    assert response.status_code == 200, response.text
    text = prompt_text(engine)
    assert text.index('"Rome"') < text.index("sunny") < text.index("and now?")
