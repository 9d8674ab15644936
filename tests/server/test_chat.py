"""/v1/chat/completions: what the engine is asked, and what the client gets."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from longspan.model.chat_template import ChatTemplate
from longspan.request import GenerationRequest, Piece
from longspan.schedule.span import TokenLogprob
from tests.server.scripted_engine import CONTEXT, ScriptedEngine

HELLO = [{"role": "user", "content": "hi"}]
BURSTS = [
    Piece("The ", (5,)),
    Piece("cat sat", (6, 7, 8)),
    Piece("", (9,)),
    Piece(" down", (10, 2), finish_reason="stop"),
]


def chat(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = client.post("/v1/chat/completions", json={"model": "default", "messages": HELLO, **fields})
    assert response.status_code == 200, response.text
    value: dict[str, Any] = response.json()
    return value


def stream(client: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    """All events of a streamed answer, `[DONE]` checked and left out."""
    body = {"model": "default", "messages": HELLO, "stream": True, **fields}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def asked(engine: ScriptedEngine) -> GenerationRequest:
    (request,) = engine.requests
    return request


def prompt_text(engine: ScriptedEngine) -> str:
    return engine.served.tokenizer.decode(asked(engine).prompt, special=True)


def test_a_whole_answer(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = lambda request: BURSTS
    answer = chat(client)
    assert answer.pop("id").startswith("chatcmpl-")
    assert answer.pop("created") > 1_700_000_000
    prompt = len(asked(engine).prompt)
    assert answer == {
        "object": "chat.completion",
        "model": "Tiny-Model",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "The cat sat down", "refusal": None, "annotations": []},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": 7,
            "total_tokens": prompt + 7,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
    }
    assert prompt_text(engine) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_one_event_a_burst(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = lambda request: BURSTS
    events = stream(client)
    assert {(event["object"], event["model"]) for event in events} == {("chat.completion.chunk", "Tiny-Model")}
    assert len({event["id"] for event in events}) == 1
    assert [event["choices"] for event in events] == [
        [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]
        for delta, reason in (
            ({"role": "assistant", "content": ""}, None),
            ({"content": "The "}, None),
            ({"content": "cat sat"}, None),
            ({"content": " down"}, "stop"),
        )
    ]
    assert not any("usage" in event for event in events)


def test_usage_at_the_end_of_a_stream(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = lambda request: BURSTS
    *events, last = stream(client, stream_options={"include_usage": True})
    assert all(event["usage"] is None for event in events)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 7
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}


def test_usage_in_every_event(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = lambda request: BURSTS
    events = stream(client, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert [event["usage"]["completion_tokens"] for event in events] == [0, 1, 4, 5, 7, 7]


def test_what_is_asked_when_nothing_is_said(client: httpx.Client, engine: ScriptedEngine) -> None:
    chat(client)
    request = asked(engine)
    assert request.max_tokens == CONTEXT - len(request.prompt)
    assert request.seed is None
    assert request.stop == ()
    assert request.stop_token_ids == ()
    assert not request.ignore_eos
    assert not request.include_stop
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 1.0, 0, 0.0)
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.0, 0.0, 0.0)
    assert (sampling.logprobs, sampling.min_tokens, sampling.suppress, sampling.logit_bias) == (-1, 0, (), ())


def test_every_honoured_field_reaches_the_engine(client: httpx.Client, engine: ScriptedEngine) -> None:
    chat(
        client,
        model="Tiny-Model",
        max_completion_tokens=9,
        temperature=0.5,
        top_p=0.9,
        top_k=12,
        min_p=0.1,
        seed=-1,
        stop=["\n\n", "END"],
        stop_token_ids=[7, 9],
        include_stop_str_in_output=True,
        ignore_eos=True,
        min_tokens=3,
        frequency_penalty=0.25,
        presence_penalty=-0.5,
        repetition_penalty=1.5,
        logit_bias={"10": -100, "11": 2.5},
        logprobs=True,
        top_logprobs=4,
        priority=-3,
        cache_salt="mine",
    )
    request = asked(engine)
    sampling = request.sampling
    assert (request.max_tokens, request.seed, request.priority) == (9, 2**64 - 1, -3)
    assert request.cache_salt == "mine"
    assert (request.stop, request.include_stop) == (("\n\n", "END"), True)
    assert (request.stop_token_ids, request.ignore_eos) == ((7, 9), True)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 12, 0.1)
    assert (sampling.frequency_penalty, sampling.presence_penalty, sampling.repetition_penalty) == (0.25, -0.5, 1.5)
    assert (sampling.logit_bias, sampling.logprobs) == (((10, -100.0), (11, 2.5)), 4)
    assert sampling.min_tokens == 3
    assert set(sampling.suppress) == engine.served.tokenizer.end_tokens | {7, 9}


@pytest.mark.parametrize("top_k", [-1, 0, 10_000_000])
def test_top_k_that_means_everything(client: httpx.Client, engine: ScriptedEngine, top_k: int) -> None:
    chat(client, top_k=top_k)
    assert asked(engine).sampling.top_k in (0, engine.served.tokenizer.vocabulary_size)


def test_defaults_may_be_sent(client: httpx.Client, engine: ScriptedEngine) -> None:
    chat(
        client,
        model="default",
        n=1,
        best_of=1,
        presence_penalty=0,
        logit_bias={},
        stop=None,
        stream=False,
        tools=[],
        tool_choice="none",
        parallel_tool_calls=True,
        response_format={"type": "text"},
        modalities=["text"],
        store=False,
        service_tier="auto",
        skip_special_tokens=True,
        reasoning_effort=None,
        user="u",
        safety_identifier="s",
        prompt_cache_key="k",
        metadata={"a": "b"},
        stream_options=None,
    )
    assert asked(engine).sampling.logit_bias == ()


def test_several_choices(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = lambda request: [
        Piece(f"{len(engine.requests)}", (5,)),
        Piece("!", (6,), finish_reason="length"),
    ]
    answer = chat(client, n=3, seed=11)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["1!", "2!", "3!"]
    assert answer["usage"]["completion_tokens"] == 6
    assert answer["usage"]["prompt_tokens"] == len(engine.requests[0].prompt)
    seeds = [request.seed for request in engine.requests]
    assert seeds[0] == 11
    assert len(set(seeds)) == 3
    engine.requests.clear()
    chat(client, n=2, seed=11)
    assert [request.seed for request in engine.requests] == seeds[:2]
    engine.requests.clear()
    chat(client, n=2)
    assert [request.seed for request in engine.requests] == [None, None]


def test_several_choices_streamed(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = lambda request: [0.01 * len(engine.requests), *BURSTS]
    opening, *events = stream(client, n=3)
    assert [choice["index"] for choice in opening["choices"]] == [0, 1, 2]
    texts = {0: "", 1: "", 2: ""}
    for event in events:
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert set(texts.values()) == {"The cat sat down"}


def test_logprobs(client: httpx.Client, engine: ScriptedEngine) -> None:
    the = engine.served.tokenizer.encode(" the", add_special=False, parse_special=False)[0]
    whole_character = engine.served.tokenizer.encode("é", add_special=False, parse_special=False)
    engine.script = lambda request: [
        Piece(
            "the",
            (the, whole_character[0]),
            (TokenLogprob(-0.5, ((the, -0.5), (3, -2.0))), TokenLogprob(float("-inf"), ())),
            "stop",
        )
    ]
    expected = {
        "content": [
            {
                "token": " the",
                "logprob": -0.5,
                "bytes": [32, 116, 104, 101],
                "top_logprobs": [
                    {"token": " the", "logprob": -0.5, "bytes": [32, 116, 104, 101]},
                    {"token": "!", "logprob": -2.0, "bytes": [33]},
                ],
            },
            {"token": "bytes:\\xc3", "logprob": -9999.0, "bytes": [0xC3], "top_logprobs": []},
        ],
        "refusal": None,
    }
    answer = chat(client, logprobs=True, top_logprobs=2)
    assert answer["choices"][0]["logprobs"] == expected
    events = stream(client, logprobs=True, top_logprobs=2)
    assert events[1]["choices"][0]["logprobs"] == expected
    assert asked_logprobs(engine) == [2, 2]
    chat(client, logprobs=True)
    assert asked_logprobs(engine)[-1] == 0
    assert chat(client, logprobs=False)["choices"][0]["logprobs"] is None
    assert asked_logprobs(engine)[-1] == -1


def asked_logprobs(engine: ScriptedEngine) -> list[int]:
    return [request.sampling.logprobs for request in engine.requests]


def test_token_ids(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = lambda request: BURSTS
    answer = chat(client, return_token_ids=True)
    assert tuple(answer["prompt_token_ids"]) == engine.requests[0].prompt
    assert answer["choices"][0]["token_ids"] == [5, 6, 7, 8, 9, 10, 2]
    opening, *events = stream(client, return_token_ids=True)
    assert tuple(opening["prompt_token_ids"]) == engine.requests[0].prompt
    assert [event["choices"][0]["token_ids"] for event in events] == [[5], [6, 7, 8], [9], [10, 2]]


METRICS = {
    "time_to_first_token_ms": 750.0,
    "generation_time_ms": 2000.0,
    "queue_time_ms": 500.0,
    "mean_itl_ms": 500.0,
    "tokens_per_second": 2.0,
}


def test_metrics_of_one_answer(client: httpx.Client, engine: ScriptedEngine) -> None:
    assert chat(client, return_metrics=True)["metrics"] == METRICS
    assert "metrics" not in chat(client)
    opening, last = stream(client, return_metrics=True)
    assert "metrics" not in opening
    assert last["metrics"] == METRICS
    *events, last = stream(client, return_metrics=True, stream_options={"include_usage": True})
    assert not any("metrics" in event for event in events)
    assert last["metrics"] == METRICS


def test_content_in_parts(client: httpx.Client, engine: ScriptedEngine) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    chat(client, messages=[{"role": "user", "content": parts}], add_generation_prompt=False)
    assert prompt_text(engine) == "<|im_start|>user\none\ntwo<|im_end|>\n"


def test_roles(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.served.context_length = 1000
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": "hi", "name": "Ann"},
        {"role": "assistant", "content": "hello", "refusal": None, "tool_calls": None, "annotations": []},
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
    ]
    chat(client, messages=messages)
    assert prompt_text(engine) == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\nhello<|im_end|>\n<|im_start|>user\n"
        "<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_what_a_template_knows_is_handed_to_it(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.served.context_length = 1000
    engine.served.chat_template = ChatTemplate(
        "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ m.name }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name }}({{ c.function.arguments.x }}){% endfor %};{% endfor %}{{ style }} developer"
        "{{ reasoning_effort }}"
    )
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": [1]}'}}
    messages = [
        {"role": "developer", "content": "d", "name": "N"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    chat(client, messages=messages, chat_template_kwargs={"style": "S"}, reasoning_effort="low")
    assert prompt_text(engine) == "developer:dN;assistant:f([1]);S developerlow"


def test_the_final_message_is_continued(client: httpx.Client, engine: ScriptedEngine) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "the end"}]
    chat(client, messages=messages, continue_final_message=True)
    assert prompt_text(engine) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nthe end"


def test_the_begin_token_is_put_in_front_once(client: httpx.Client, engine: ScriptedEngine) -> None:
    tokenizer = engine.served.tokenizer
    # The template's first token happens to be this vocabulary's begin token.
    tokenizer.adds_bos = True
    try:
        chat(client)
        assert asked(engine).prompt[:2] != (tokenizer.bos, tokenizer.bos)
        engine.requests.clear()
        engine.served.chat_template = ChatTemplate("plain")
        chat(client)
        assert asked(engine).prompt[0] == tokenizer.bos
        assert prompt_text(engine) == "<|im_start|>plain"
    finally:
        tokenizer.adds_bos = False


def test_request_names(client: httpx.Client) -> None:
    body = {"model": "default", "messages": HELLO}
    response = client.post("/v1/chat/completions", json=body, headers={"x-request-id": "abc-1"})
    assert response.headers["x-request-id"] == "abc-1"
    made_up = client.post("/v1/chat/completions", json=body, headers={"x-request-id": "no spaces please"})
    assert len(made_up.headers["x-request-id"]) == 24
    assert chat(client, request_id="mine")["id"] == "chatcmpl-mine"


def test_prompt_logprobs(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = lambda request: [
        Piece("a", (7,), prompt_logprobs=tuple(TokenLogprob(-1.0) for _ in request.prompt[1:])),
        Piece("", (), finish_reason="stop"),
    ]
    answer = chat(client, prompt_logprobs=0, n=2)
    tokens = engine.requests[0].prompt
    assert [entry and list(entry) for entry in answer["prompt_logprobs"]] == [None, *[[str(t)] for t in tokens[1:]]]
    assert "prompt_logprobs" not in chat(client)
