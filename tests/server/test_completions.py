"""/v1/completions: prompts of every kind, echo, log-probabilities."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from longspan.request import Piece
from longspan.schedule.span import TokenLogprob
from tests.server.scripted_engine import CONTEXT, ScriptedEngine, always
from tests.tiny_models import END_TOKEN


def complete(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = client.post("/v1/completions", json={"model": "default", **fields})
    assert response.status_code == 200, response.text
    value: dict[str, Any] = response.json()
    return value


def stream(client: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    response = client.post("/v1/completions", json={"model": "default", "stream": True, **fields})
    assert response.status_code == 200, response.text
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def prompts(engine: ScriptedEngine) -> list[str]:
    return [engine.served.tokenizer.decode(request.prompt, special=True) for request in engine.requests]


def test_a_whole_answer(client: httpx.Client, engine: ScriptedEngine) -> None:
    answer = complete(client, prompt="the cat")
    assert answer.pop("id").startswith("cmpl-")
    assert answer.pop("created") > 1_700_000_000
    prompt = len(engine.requests[0].prompt)
    assert answer == {
        "object": "text_completion",
        "model": "Tiny-Model",
        "choices": [{"index": 0, "text": "fine", "logprobs": None, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": 2,
            "total_tokens": prompt + 2,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
    }
    assert prompts(engine) == ["the cat"]
    assert engine.requests[0].max_tokens == 16


def test_sixteen_tokens_or_what_is_left(client: httpx.Client, engine: ScriptedEngine) -> None:
    complete(client, prompt=[7] * (CONTEXT - 5))
    assert engine.requests[0].max_tokens == 5


def test_one_event_a_burst(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = lambda request: [
        Piece("one", (5,)),
        Piece(" two", (6, 7)),
        Piece("", (), finish_reason="length"),
    ]
    events = stream(client, prompt="x", stream_options={"include_usage": True})
    assert [event["choices"] for event in events] == [
        [{"index": 0, "text": "one", "logprobs": None, "finish_reason": None}],
        [{"index": 0, "text": " two", "logprobs": None, "finish_reason": None}],
        [{"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}],
        [],
    ]
    assert [event["usage"] and event["usage"]["completion_tokens"] for event in events] == [None, None, None, 3]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("the", ["the"]),
        (["the", "cat"], ["the", "cat"]),
        ([86, 74], None),
        ([[86], [74, 71]], None),
    ],
)
def test_prompts_of_every_kind(
    client: httpx.Client, engine: ScriptedEngine, prompt: Any, expected: list[str] | None
) -> None:
    engine.script = lambda request: [Piece(str(len(request.prompt)), (5,), finish_reason="stop")]
    answer = complete(client, prompt=prompt)
    if expected is None:
        given = [tuple(prompt)] if isinstance(prompt[0], int) else [tuple(tokens) for tokens in prompt]
        assert [request.prompt for request in engine.requests] == given
    else:
        assert prompts(engine) == expected
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(engine.requests)))
    assert [int(choice["text"]) for choice in answer["choices"]] == [len(r.prompt) for r in engine.requests]
    assert answer["usage"]["prompt_tokens"] == sum(len(request.prompt) for request in engine.requests)


def test_control_tokens_in_a_prompt(client: httpx.Client, engine: ScriptedEngine) -> None:
    complete(client, prompt="<|im_start|>user")
    assert engine.requests[0].prompt[0] == engine.served.tokenizer.bos


@pytest.mark.parametrize("streamed", [False, True])
def test_echo_with_several_prompts_and_choices(
    client: httpx.Client, engine: ScriptedEngine, streamed: bool
) -> None:
    engine.script = lambda request: [
        Piece(f"<{len(engine.requests)}", (5,)),
        Piece(">", (6,), finish_reason="stop"),
    ]
    if streamed:
        texts = [""] * 4
        for event in stream(client, prompt=["ab", "cd"], n=2, echo=True):
            for choice in event["choices"]:
                texts[choice["index"]] += choice["text"]
    else:
        answer = complete(client, prompt=["ab", "cd"], n=2, echo=True)
        texts = [choice["text"] for choice in answer["choices"]]
    assert texts == ["ab<1>", "ab<2>", "cd<3>", "cd<4>"]


def test_echo_of_tokens(client: httpx.Client, engine: ScriptedEngine) -> None:
    tokens = engine.served.tokenizer.encode("the cat", add_special=False, parse_special=False)
    assert complete(client, prompt=tokens, echo=True)["choices"][0]["text"] == "the catfine"


def test_logprobs(client: httpx.Client, engine: ScriptedEngine) -> None:
    tokenizer = engine.served.tokenizer
    the, cat = (tokenizer.encode(text, add_special=False, parse_special=False)[0] for text in (" the", "c"))
    engine.script = lambda request: [
        Piece(" the", (the,), (TokenLogprob(-0.5, ((the, -0.5),)),)),
        Piece("c!", (cat, 3), (TokenLogprob(-3.0, ((the, -0.25),)), TokenLogprob(-1.0)), "stop"),
    ]
    expected = {
        "text_offset": [0, 4, 5],
        "tokens": [" the", "c", "!"],
        "token_logprobs": [-0.5, -3.0, -1.0],
        "top_logprobs": [{" the": -0.5}, {" the": -0.25, "c": -3.0}, {"!": -1.0}],
    }
    assert complete(client, prompt="x", logprobs=1)["choices"][0]["logprobs"] == expected
    assert engine.requests[0].sampling.logprobs == 1
    parts = [event["choices"][0]["logprobs"] for event in stream(client, prompt="x", logprobs=1)]
    assert {key: [item for part in parts for item in part[key]] for key in expected} == expected
    complete(client, prompt="x", logprobs=0)
    assert engine.requests[-1].sampling.logprobs == 0


def test_echo_with_logprobs_begins_with_those_of_the_prompt(client: httpx.Client, engine: ScriptedEngine) -> None:
    tokenizer = engine.served.tokenizer
    prompt = tokenizer.encode("the cat", add_special=False, parse_special=False)
    scores = tuple(TokenLogprob(-float(place), ((5, -0.1), (6, -0.2))) for place in range(1, len(prompt)))
    engine.script = always(
        Piece(" a", (7,), (TokenLogprob(-0.5, ((7, -0.5),)),), prompt_logprobs=scores),
        Piece("!", (8,), (TokenLogprob(-0.75, ((8, -0.75),)),), "length"),
    )
    texts = [tokenizer.piece(token).decode() for token in (*prompt, 7, 8)]
    whole = complete(client, prompt=prompt, echo=True, logprobs=1)["choices"][0]
    assert whole["text"] == "the cat a!"
    found = whole["logprobs"]
    assert found["tokens"] == texts
    assert found["token_logprobs"] == [None, *[entry.logprob for entry in scores], -0.5, -0.75]
    assert found["text_offset"] == [len("".join(texts[:place])) for place in range(len(texts))]
    assert found["top_logprobs"][0] is None
    assert found["top_logprobs"][1] == {tokenizer.piece(5).decode(): -0.1, texts[1]: -1.0}
    assert (engine.requests[0].sampling.prompt_logprobs, engine.requests[0].sampling.logprobs) == (1, 1)
    parts = [event["choices"][0]["logprobs"] for event in stream(client, prompt=prompt, echo=True, logprobs=1)]
    assert {key: [item for part in parts for item in part[key]] for key in found} == found
    # Nothing to be seen of a control token is still an echo of one token.
    special = complete(client, prompt=[END_TOKEN], echo=True, logprobs=0)["choices"][0]
    assert special["logprobs"]["token_logprobs"][0] is None
    complete(client, prompt=prompt, logprobs=1)
    assert engine.requests[-1].sampling.prompt_logprobs == -1


def test_prompt_logprobs(client: httpx.Client, engine: ScriptedEngine) -> None:
    piece = engine.served.tokenizer.piece
    scores = (TokenLogprob(-0.25, ((9, -0.25), (6, -2.0))), TokenLogprob(-4.0, ((5, -0.1), (6, -0.2))))
    engine.script = always(Piece("a", (7,), prompt_logprobs=scores), Piece("", (), finish_reason="length"))
    choice = complete(client, prompt=[8, 9, 10], prompt_logprobs=2)["choices"][0]

    def told(token: int, logprob: float, rank: int | None) -> dict[str, Any]:
        return {"logprob": logprob, "rank": rank, "decoded_token": piece(token).decode()}

    assert choice["prompt_logprobs"] == [
        None,
        {"9": told(9, -0.25, 1), "6": told(6, -2.0, 2)},
        {"10": told(10, -4.0, None), "5": told(5, -0.1, 1), "6": told(6, -0.2, 2)},
    ]
    assert choice["logprobs"] is None
    assert engine.requests[0].sampling.prompt_logprobs == 2
    assert complete(client, prompt=[8, 9, 10], prompt_logprobs=0)["choices"][0]["prompt_logprobs"] == [
        None,
        {"9": told(9, -0.25, None)},
        {"10": told(10, -4.0, None)},
    ]
    assert "prompt_logprobs" not in complete(client, prompt=[8, 9, 10])["choices"][0]


def test_token_ids_and_metrics(client: httpx.Client, engine: ScriptedEngine) -> None:
    answer = complete(client, prompt=[9, 8], return_token_ids=True, return_metrics=True)
    assert answer["choices"][0]["prompt_token_ids"] == [9, 8]
    assert answer["choices"][0]["token_ids"] == [5, 6]
    assert answer["metrics"]["queue_time_ms"] == 500.0
    (event,) = stream(client, prompt=[9, 8], return_token_ids=True, return_metrics=True)
    assert event["choices"][0]["prompt_token_ids"] == [9, 8]
    assert event["choices"][0]["token_ids"] == [5, 6]
    assert event["metrics"]["queue_time_ms"] == 500.0
