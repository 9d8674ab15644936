"""/v1/responses: what the engine is asked, and what the client gets."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from longspan.errors import QueueFullError, RingError
from longspan.request import Piece
from longspan.schedule.span import TokenLogprob
from tests.server.events import named_events
from tests.server.scripted_engine import ScriptedEngine, always

PATH = "/v1/responses"
BODY: dict[str, Any] = {"model": "default", "input": "hi"}
BURSTS = [Piece("The ", (5,)), Piece("", (9,)), Piece("cat", (6, 2), finish_reason="stop")]


def prompt_text(engine: ScriptedEngine) -> str:
    (request,) = engine.requests
    return engine.served.tokenizer.decode(request.prompt, special=True)


def test_a_whole_response(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = lambda request: BURSTS
    answer = client.post(PATH, json={**BODY, "metadata": {"a": "b"}, "temperature": 0.5}).json()
    assert answer["id"].startswith("resp_")
    assert (answer["object"], answer["status"], answer["model"]) == ("response", "completed", "Tiny-Model")
    (message,) = answer["output"]
    assert (message["type"], message["role"], message["status"]) == ("message", "assistant", "completed")
    assert message["content"] == [{"type": "output_text", "text": "The cat", "annotations": [], "logprobs": []}]
    assert answer["text"] == {"format": answer["text"]["format"], "verbosity": "medium"}
    assert answer["usage"] == {
        "input_tokens": len(engine.requests[0].prompt),
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": len(engine.requests[0].prompt) + 4,
    }
    assert (answer["metadata"], answer["temperature"], answer["top_p"]) == ({"a": "b"}, 0.5, 1.0)
    assert (answer["error"], answer["incomplete_details"], answer["store"]) == (None, None, False)


def test_a_streamed_response(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = lambda request: BURSTS
    response = client.post(PATH, json={**BODY, "stream": True})
    assert response.text.endswith("data: [DONE]\n\n")
    events = named_events(response.text)
    assert [name for name, _ in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert all(name == data["type"] for name, data in events)
    whole = client.post(PATH, json=BODY).json()
    last = events[-1][1]["response"]
    own = ("id", "created_at", "completed_at", "output")
    assert {key: value for key, value in last.items() if key not in own} == {
        key: value for key, value in whole.items() if key not in own
    }
    assert last["output"][0]["content"] == whole["output"][0]["content"]
    assert events[0][1]["response"]["status"] == "in_progress"
    assert {data["item_id"] for _, data in events if "item_id" in data} == {last["output"][0]["id"]}


def test_a_response_that_is_cut_off(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = always(Piece("The", (5,), finish_reason="length"))
    answer = client.post(PATH, json={**BODY, "max_output_tokens": 1}).json()
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (answer["output"][0]["status"], answer["completed_at"]) == ("incomplete", None)
    assert engine.requests[0].max_tokens == 1
    *_, (name, _) = named_events(client.post(PATH, json={**BODY, "stream": True}).text)
    assert name == "response.incomplete"


def test_log_probabilities(client: httpx.Client, engine: ScriptedEngine) -> None:
    entry = TokenLogprob(-0.5, ((5, -0.5), (6, -1.5)))
    engine.script = always(Piece("a", (5,), (entry,), finish_reason="stop"))
    body = {**BODY, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    (part,) = client.post(PATH, json=body).json()["output"][0]["content"]
    (found,) = part["logprobs"]
    assert (found["logprob"], len(found["top_logprobs"])) == (-0.5, 2)
    assert engine.requests[0].sampling.logprobs == 2
    events = named_events(client.post(PATH, json={**body, "stream": True}).text)
    assert [data["logprobs"] for name, data in events if name.endswith("text.delta")] == [[found]]


def test_fields_reach_the_engine(client: httpx.Client, engine: ScriptedEngine) -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "seed": 3, "top_k": 4, "frequency_penalty": 1, "ignore_eos": True}
    accepted = {"user": "u", "store": False, "truncation": "disabled", "text": {"format": {"type": "text"}}}
    assert client.post(PATH, json={**BODY, **fields, **accepted}).status_code == 200
    (request,) = engine.requests
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.frequency_penalty) == (0.5, 0.9, 4, 1)
    assert (request.seed, request.ignore_eos) == (3, True)


@pytest.mark.parametrize(
    "given",
    [
        "hi",
        [{"role": "user", "content": "hi"}],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
    ],
)
def test_the_prompt(client: httpx.Client, engine: ScriptedEngine, given: Any) -> None:
    client.post(PATH, json={"model": "default", "input": given, "instructions": "be brief"})
    assert prompt_text(engine) == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_an_answer_can_be_sent_back_as_it_came(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = lambda request: BURSTS
    output = client.post(PATH, json=BODY).json()["output"]
    engine.reset()
    history = [{"role": "user", "content": "hi"}, *output, {"role": "user", "content": "on"}]
    response = client.post(PATH, json={"model": "default", "input": history})
    assert response.status_code == 200, response.text
    assert "assistant\nThe cat<|im_end|>\n<|im_start|>user\non" in prompt_text(engine)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
        ({"max_output_tokens": 1000}, "input"),
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"temperature": 3}, "temperature"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"messages": []}, "messages"),
    ],
)
def test_refusals(client: httpx.Client, engine: ScriptedEngine, fields: dict[str, Any], param: str) -> None:
    response = client.post(PATH, json={**BODY, **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert not engine.requests


@pytest.mark.parametrize("streamed", [False, True])
def test_errors_before_the_first_token(client: httpx.Client, engine: ScriptedEngine, streamed: bool) -> None:
    engine.refuse = QueueFullError("full", retry_after=2.2)
    response = client.post(PATH, json={**BODY, "stream": streamed})
    assert (response.status_code, response.headers["retry-after"]) == (429, "3")
    engine.reset()
    engine.script = always(RingError("lost"))
    assert client.post(PATH, json={**BODY, "stream": streamed}).json()["error"]["message"] == "lost"


def test_an_error_in_the_middle(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = always(Piece("a", (5,)), RingError("stage 1 was lost"))
    *_, (name, data) = named_events(client.post(PATH, json={**BODY, "stream": True}).text)
    assert name == "response.failed"
    assert data["response"]["status"] == "failed"
    assert data["response"]["error"] == {"code": "server_error", "message": "stage 1 was lost"}
    engine.script = always(Piece("a", (5,)), RuntimeError("secret"))
    *_, (name, data) = named_events(client.post(PATH, json={**BODY, "stream": True}).text)
    assert name == "error"
    assert "its log says what" in data["message"]


WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {"city": {}}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


def test_a_call_of_a_function(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.served.context_length = 4096
    pieces = [Piece(part, (5,)) for part in ("Let me ", "look.\n", CALL[:30], CALL[30:50], CALL[50:])]
    engine.script = always(*pieces, Piece("", (2,), finish_reason="stop"))
    body = {**BODY, "tools": [WEATHER]}
    answer = client.post(PATH, json=body).json()
    message, call = answer["output"]
    assert message["content"][0]["text"].strip() == "Let me look."
    assert (call["type"], call["name"], call["status"]) == ("function_call", "weather", "completed")
    assert json.loads(call["arguments"]) == {"city": "Rome"}
    # Every field of a tool is there, as the schema of the API wants it.
    assert answer["tools"] == [{"description": None, "strict": None, **WEATHER}]
    events = named_events(client.post(PATH, json={**body, "stream": True}).text)
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    parts = [data["delta"] for name, data in events if name == "response.function_call_arguments.delta"]
    assert json.loads("".join(parts)) == {"city": "Rome"}
    done = [data["item"] for name, data in events if name == "response.output_item.done"]
    assert [item["type"] for item in done] == ["message", "function_call"]
    assert events[-1][1]["response"]["output"] == done
    # The call and its result go back to the model.
    engine.reset()
    engine.served.context_length = 4096
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    history = [{"role": "user", "content": "hi"}, *answer["output"], result]
    response = client.post(PATH, json={"model": "default", "input": history, "tools": [WEATHER]})
    assert response.status_code == 200, response.text
    assert prompt_text(engine).index('"Rome"') < prompt_text(engine).index("sunny")
