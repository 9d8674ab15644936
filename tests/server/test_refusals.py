"""What is refused: always as JSON, with the right status, and with the field's name."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longspan.errors import QueueFullError, RequestTimeoutError, RingError, RingIncompleteError
from longspan.model.chat_template import ChatTemplate
from longspan.request import Piece
from longspan.server import ServerOptions
from tests.server.conftest import running_server
from tests.server.scripted_engine import CONTEXT, ScriptedEngine, always

HELLO = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def refusal(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    (error,) = response.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in response.text
    value: dict[str, Any] = error
    return value


UNKNOWN, UNSUPPORTED, INVALID = "unknown_parameter", "unsupported_parameter", "invalid_value"
UNHONOURABLE, MISSING = "unsupported_grammar", "missing_required_parameter"
SCHEMA = "response_format.json_schema.schema"


def tool(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields}}


def schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


TOOL = tool()


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"temprature": 1}, "temprature", UNKNOWN),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage", UNKNOWN),
        ({"messages": [{"role": "user", "content": "x", "tone": 1}]}, "messages[0].tone", UNKNOWN),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role", INVALID),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "missing_required_parameter"),
        ({"messages": []}, "messages", INVALID),
        ({"messages": "hi"}, "messages", INVALID),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", INVALID),
        ({"temperature": "hot"}, "temperature", INVALID),
        ({"temperature": -0.1}, "temperature", INVALID),
        ({"temperature": 2.1}, "temperature", INVALID),
        ({"top_p": 0}, "top_p", INVALID),
        ({"top_p": 1.5}, "top_p", INVALID),
        ({"top_k": -2}, "top_k", INVALID),
        ({"top_k": 1.5}, "top_k", INVALID),
        ({"min_p": 2}, "min_p", INVALID),
        ({"seed": 1 << 64}, "seed", INVALID),
        ({"seed": "7"}, "seed", INVALID),
        ({"n": 0}, "n", INVALID),
        ({"n": 1000}, "n", INVALID),
        ({"max_tokens": 0}, "max_tokens", INVALID),
        ({"max_tokens": 3, "max_completion_tokens": 3}, "max_tokens", None),
        ({"stop": ""}, "stop", INVALID),
        ({"stop": ["a", ""]}, "stop[1]", INVALID),
        ({"stop": ["a"] * 17}, "stop", INVALID),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", INVALID),
        ({"stop_token_ids": [99999]}, "stop_token_ids", None),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", None),
        ({"frequency_penalty": 3}, "frequency_penalty", INVALID),
        ({"presence_penalty": -3}, "presence_penalty", INVALID),
        ({"repetition_penalty": 0}, "repetition_penalty", INVALID),
        ({"logit_bias": {"7": 101}}, "logit_bias", INVALID),
        ({"logit_bias": {"seven": 1}}, "logit_bias", INVALID),
        ({"logit_bias": {"99999": 1}}, "logit_bias", None),
        ({"logprobs": 5}, "logprobs", INVALID),
        ({"top_logprobs": 2}, "top_logprobs", None),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", INVALID),
        ({"stream_options": {"include_usage": True}}, "stream_options", None),
        ({"stream": "yes"}, "stream", INVALID),
        ({"priority": 1 << 40}, "priority", INVALID),
        ({"request_id": "a b"}, "request_id", INVALID),
        ({"return_metrics": True, "n": 2}, "return_metrics", None),
        ({"continue_final_message": True}, "continue_final_message", None),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message", None),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages", None),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs.self", None),
        ({"reasoning_effort": "high"}, "reasoning_effort", UNSUPPORTED),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
        ({"tools": [{"type": "web_search", "function": {"name": "f"}}]}, "tools[0].type", INVALID),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", INVALID),
        ({"tools": [TOOL, TOOL]}, "tools", None),
        ({"tools": [tool(parameters={"type": "string"})]}, "tools[0].function.parameters", None),
        ({"tools": [tool(parameters={"not": {}})], "tool_choice": "required"}, "tools", UNHONOURABLE),
        ({"tools": [tool(parameters={"not": {}}, strict=True)]}, "tools", UNHONOURABLE),
        ({"tool_choice": "required"}, "tool_choice", None),
        ({"tool_choice": "sometimes", "tools": [TOOL]}, "tool_choice", INVALID),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [TOOL]}, "tool_choice", None),
        ({"functions": [{}]}, "functions", UNSUPPORTED),
        ({"response_format": {"type": "xml"}}, "response_format.type", INVALID),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", MISSING),
        ({"response_format": {"type": "text", "json_schema": {"name": "a"}}}, "response_format.json_schema", None),
        ({"response_format": schema_format(None)}, "response_format.json_schema.schema", MISSING),
        ({"response_format": schema_format({"uniqueItems": True})}, SCHEMA, UNHONOURABLE),
        ({"response_format": schema_format({"$ref": "#/nowhere"})}, SCHEMA, UNHONOURABLE),
        ({"response_format": schema_format({"type": "number"}), "guided_regex": "a"}, "guided_regex", None),
        ({"guided_json": "{"}, "guided_json", UNHONOURABLE),
        ({"guided_json": "7"}, "guided_json", UNHONOURABLE),
        ({"guided_regex": "("}, "guided_regex", UNHONOURABLE),
        ({"guided_choice": []}, "guided_choice", INVALID),
        ({"guided_grammar": "garbage ((("}, "guided_grammar", UNHONOURABLE),
        ({"structured_outputs": {}}, "structured_outputs", None),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice", None),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", UNKNOWN),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True}},
            "structured_outputs.whitespace_pattern",
            None,
        ),
        ({"modalities": ["audio"]}, "modalities", UNSUPPORTED),
        ({"audio": {}}, "audio", UNSUPPORTED),
        ({"prediction": {}}, "prediction", UNSUPPORTED),
        ({"web_search_options": {}}, "web_search_options", UNSUPPORTED),
        ({"store": True}, "store", UNSUPPORTED),
        ({"service_tier": "flex"}, "service_tier", UNSUPPORTED),
        ({"best_of": 2}, "best_of", UNSUPPORTED),
        ({"prompt_logprobs": 21}, "prompt_logprobs", INVALID),
        ({"cache_salt": ""}, "cache_salt", INVALID),
        ({"echo": True}, "echo", UNSUPPORTED),
    ],
)
def test_chat_fields(
    client: httpx.Client, engine: ScriptedEngine, fields: dict[str, Any], param: str, code: str | None
) -> None:
    error = refusal(client.post(CHAT, json={"model": "default", "messages": HELLO, **fields}), 400)
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")
    assert param.split(".")[-1].split("[")[0] in error["message"]
    assert not engine.requests


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "image_url", "image_url": {"url": "x"}}, "type"),
        ({"type": "input_audio", "input_audio": {}}, "type"),
        ({"type": "file", "file": {}}, "type"),
        ({"type": "text"}, "text"),
        ({"type": "text", "text": "x", "image_url": "y"}, "image_url"),
        ({"type": "text", "text": "x", "cache_control": {}}, "cache_control"),
    ],
)
def test_content_parts(client: httpx.Client, part: dict[str, Any], param: str) -> None:
    messages = [*HELLO, {"role": "user", "content": [{"type": "text", "text": "look"}, part]}]
    error = refusal(client.post(CHAT, json={"model": "default", "messages": messages}), 400)
    assert error["param"] == f"messages[1].content[1].{param}"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": "x", "tool_calls": [{"id": "1", "function": {"name": "f"}}]}, "arguments"),
        (
            {
                "role": "user",
                "content": "x",
                "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": ""}}],
            },
            "tool_calls",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{"}}]},
            "function.arguments",
        ),
    ],
)
def test_tool_calls_in_messages(client: httpx.Client, message: dict[str, Any], param: str) -> None:
    error = refusal(client.post(CHAT, json={"model": "default", "messages": [message]}), 400)
    assert error["param"].endswith(param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [[1], 1]}, "prompt"),
        ({"prompt": [99999]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": ["a"] * 257}, "prompt"),
        ({"prompt": ["a"] * 10, "n": 64}, "n"),
        ({"prompt": ["a", "b"], "return_metrics": True}, "return_metrics"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt": "a", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "messages": HELLO}, "messages"),
    ],
)
def test_completion_fields(
    client: httpx.Client, engine: ScriptedEngine, fields: dict[str, Any], param: str
) -> None:
    assert refusal(client.post(TEXT, json={"model": "default", **fields}), 400)["param"] == param
    assert not engine.requests


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no body"),
        (b'{"messages": [}', "(byte 14)"),
        (b'{"messages": [', "(byte 14)"),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', "UTF-8"),
        (b"[]", "must be a JSON object"),
        (b"[" * 5000, "must be a JSON object"),
        (
            b'{"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"a": %s}}' % (b"[" * 9000),
            "",
        ),
    ],
)
def test_malformed_bodies(client: httpx.Client, body: bytes, words: str) -> None:
    assert words in refusal(client.post(CHAT, content=body), 400)["message"]


def test_bodies_over_the_limit(client: httpx.Client) -> None:
    assert "20000 bytes" in refusal(client.post(CHAT, content=b"x" * 20_001), 413)["message"]

    def chunks() -> Any:
        for _ in range(30):
            yield b"x" * 1000

    assert refusal(client.post(CHAT, content=chunks()), 413)["code"] == "body_too_large"


@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", "/detokenize"])
def test_unknown_models(client: httpx.Client, path: str) -> None:
    fields: dict[str, dict[str, Any]] = {CHAT: {"messages": HELLO}, "/detokenize": {"tokens": [5]}}
    body = {"model": "gpt-9", **fields.get(path, {"prompt": "x"})}
    error = refusal(client.post(path, json=body), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "Tiny-Model" in error["message"]
    for name in ("Tiny-Model", "models/tiny.gguf", "default"):
        assert client.post(path, json={**body, "model": name}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": HELLO}),
        (TEXT, {"prompt": "x"}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 4}),
        ("/v1/messages/count_tokens", {"messages": HELLO}),
    ],
)
def test_a_request_must_name_a_model(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    response = client.post(path, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "`model` is required."
    assert client.post(path, json={**body, "model": "default"}).status_code == 200


def test_unknown_paths_and_wrong_methods(client: httpx.Client) -> None:
    assert refusal(client.get("/v1/nothing"), 404)["code"] == "not_found"
    response = client.get(CHAT)
    assert refusal(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"
    refusal(client.delete("/v1/models"), 405)


def test_context_overflow_names_both_numbers(client: httpx.Client, engine: ScriptedEngine) -> None:
    error = refusal(client.post(TEXT, json={"model": "default", "prompt": [7] * 40, "max_tokens": 100}), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert f"maximum context length is {CONTEXT} tokens" in error["message"]
    assert "140" in error["message"]
    error = refusal(client.post(TEXT, json={"model": "default", "prompt": [7] * CONTEXT}), 400)
    assert error["code"] == "context_length_exceeded"
    error = refusal(
        client.post(CHAT, json={"model": "default", "messages": [{"role": "user", "content": "qx" * 40}]}), 400
    )
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    # Too long to fit whatever its tokens are, so it is not even tokenized.
    error = refusal(client.post(TEXT, json={"model": "default", "prompt": "a" * 15_000}), 400)
    assert "at least" in error["message"]
    assert str(CONTEXT) in error["message"]
    assert not engine.requests


def test_messages_that_the_template_refuses(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.served.chat_template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    error = refusal(client.post(CHAT, json={"model": "default", "messages": HELLO}), 400)
    assert error["param"] == "messages"
    assert "roles must alternate" in error["message"]


def test_no_chat_template(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.served.chat_template = None
    assert (
        refusal(client.post(CHAT, json={"model": "default", "messages": HELLO}), 400)["code"] == "no_chat_template"
    )


@pytest.mark.parametrize("streamed", [False, True])
def test_what_the_engine_refuses(client: httpx.Client, engine: ScriptedEngine, streamed: bool) -> None:
    body = {"model": "default", "messages": HELLO, "stream": streamed}
    engine.refuse = QueueFullError("256 requests wait already", retry_after=2.2)
    response = client.post(CHAT, json=body)
    error = refusal(response, 429)
    assert (response.headers["retry-after"], error["type"]) == ("3", "rate_limit_error")
    assert error["message"] == "256 requests wait already"
    engine.refuse = RingIncompleteError("layers 2-4 are missing", retry_after=6.2)
    response = client.post(CHAT, json={"model": "default", "messages": HELLO})
    assert refusal(response, 503)["message"] == "layers 2-4 are missing"
    assert response.headers["retry-after"] == "7"
    engine.refuse = RingError("stage 1 is missing")
    response = client.post(CHAT, json=body)
    assert refusal(response, 503)["message"] == "stage 1 is missing"
    assert int(response.headers["retry-after"]) > 0


def test_what_was_submitted_of_several_is_cancelled(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.refuse = RuntimeError("secret")
    engine.script = lambda request: [5.0]
    refusal(client.post(CHAT, json={"model": "default", "messages": HELLO, "n": 3}), 500)
    # The scripted stream hears of it one turn of its loop later.
    client.get("/health")
    assert [stream.cancelled for stream in engine.streams] == [True]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_errors_before_the_first_token(
    client: httpx.Client, engine: ScriptedEngine, streamed: bool, n: int
) -> None:
    body = {"model": "default", "messages": HELLO, "stream": streamed, "n": n}
    failures: list[tuple[Exception, int]] = [
        (RingError("lost"), 503),
        (RequestTimeoutError("waited 5 s"), 504),
        (RuntimeError("secret"), 500),
    ]
    for error, status in failures:
        engine.script = always(0.01, error)
        message = refusal(client.post(CHAT, json=body), status)["message"]
        assert "secret" not in message


@pytest.mark.parametrize("n", [1, 2])
def test_errors_in_the_middle_of_a_stream(client: httpx.Client, engine: ScriptedEngine, n: int) -> None:
    failures: list[tuple[Exception, str]] = [
        (RingError("stage 1 was lost"), "stage 1 was lost"),
        (RuntimeError("secret"), "Something went wrong inside the server; its log says what."),
    ]
    for error, message in failures:
        engine.script = always(Piece("a", (5,)), 0.01, error)
        response = client.post(CHAT, json={"model": "default", "messages": HELLO, "stream": True, "n": n})
        assert response.status_code == 200
        *_, last, done, _ = response.text.split("\n\n")
        assert json.loads(last.removeprefix("data: "))["error"]["message"] == message
        assert done == "data: [DONE]"
        assert "secret" not in response.text


def test_errors_in_the_middle_of_a_whole_answer(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = lambda request: [Piece("a", (5,)), RingError("stage 1 was lost")]
    assert (
        refusal(client.post(CHAT, json={"model": "default", "messages": HELLO}), 503)["message"]
        == "stage 1 was lost"
    )
    engine.script = lambda request: [Piece("a", (5,))]
    assert "broke off" in refusal(client.post(CHAT, json={"model": "default", "messages": HELLO}), 503)["message"]
    engine.script = lambda request: [Piece("a", (), finish_reason="cancelled")]
    assert "cancelled" in refusal(client.post(CHAT, json={"model": "default", "messages": HELLO}), 503)["message"]


def test_bugs_are_logged_and_not_told(
    client: httpx.Client, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.fail = RuntimeError("secret")
    headers = {"x-request-id": "find-me"}
    error = refusal(client.post(CHAT, json={"model": "default", "messages": HELLO}, headers=headers), 500)
    assert "secret" not in error["message"]
    (record,) = [record for record in caplog.records if "find-me" in record.getMessage()]
    assert record.exc_info is not None


def test_api_keys(engine: ScriptedEngine) -> None:
    options = ServerOptions(api_keys=("sk-one", "sk-two"))
    with running_server(engine, options) as url, httpx.Client(base_url=url) as client:
        for given in (b"", b"Bearer", b"Bearer sk-three", b"Basic sk-one", b"Bearer \xff"):
            response = client.get("/v1/models", headers={b"authorization": given})
            assert refusal(response, 401)["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
        for key in options.api_keys:
            assert client.get("/v1/models", headers={"authorization": f"bearer {key}"}).status_code == 200
        assert client.get("/health").status_code == 200


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(
    ["messages", "prompt", "stop", "logit_bias", "n", "stream_options", "seed", "tools", "chat_template_kwargs"]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from([CHAT, TEXT, "/tokenize", "/detokenize"]), body=st.dictionaries(names, values))
def test_any_json_gets_a_clean_answer(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    response = client.post(path, json={"messages": HELLO, **body, "model": "default"} if path == CHAT else body)
    assert response.status_code < 500, response.text
    assert response.status_code == 200 or "error" in response.json()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=60))
def test_any_bytes_get_a_clean_answer(client: httpx.Client, body: bytes) -> None:
    refusal(client.post(CHAT, content=body), 400)
