"""/tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.scripted_engine import CONTEXT, ScriptedEngine
from tests.tiny_models import CHAT_TEMPLATE

HELLO = [{"role": "user", "content": "hi"}]


def test_a_prompt(client: httpx.Client, engine: ScriptedEngine) -> None:
    answer = client.post("/tokenize", json={"prompt": "the<|im_end|>é", "return_token_strs": True}).json()
    tokenizer = engine.served.tokenizer
    tokens = tokenizer.encode("the<|im_end|>é", add_special=True, parse_special=True)
    assert answer["tokens"] == tokens
    assert (answer["count"], answer["max_model_len"]) == (len(tokens), 64)
    assert "<|im_end|>" in answer["token_strs"]
    assert answer["token_strs"][-1] == "bytes:\\xa9"
    assert client.post("/detokenize", json={"tokens": tokens}).json() == {"prompt": "the<|im_end|>é"}


def test_special_tokens_around_a_prompt(client: httpx.Client, engine: ScriptedEngine) -> None:
    plain = client.post("/tokenize", json={"prompt": "the", "add_special_tokens": False}).json()
    tokenizer = engine.served.tokenizer
    assert plain["tokens"] == tokenizer.encode("the", add_special=False, parse_special=True)
    assert plain["token_strs"] is None


def test_messages_are_what_a_chat_would_run(client: httpx.Client, engine: ScriptedEngine) -> None:
    for fields in ({}, {"add_generation_prompt": False}):
        answer = client.post("/tokenize", json={"messages": HELLO, **fields}).json()
        client.post("/v1/chat/completions", json={"model": "default", "messages": HELLO, **fields})
        assert tuple(answer["tokens"]) == engine.requests[-1].prompt
    messages = [*HELLO, {"role": "assistant", "content": "well"}]
    answer = client.post("/tokenize", json={"messages": messages, "continue_final_message": True}).json()
    assert engine.served.tokenizer.decode(answer["tokens"], special=True).endswith("assistant\nwell")


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": HELLO}, "prompt"),
        ("/tokenize", {"prompt": "x", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"messages": HELLO, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"prompt": "x", "colour": 1}, "colour"),
        ("/detokenize", {"tokens": [1, 99999]}, "tokens"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ],
)
def test_refusals(client: httpx.Client, path: str, fields: dict[str, Any], param: str) -> None:
    response = client.post(path, json=fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_what_a_client_must_know_of_the_tokenizer(client: httpx.Client, engine: ScriptedEngine) -> None:
    info = client.get("/tokenizer_info").json()
    tokenizer = engine.served.tokenizer
    tokens = client.post("/tokenize", json={"prompt": info["eos_token"], "add_special_tokens": False}).json()[
        "tokens"
    ]
    assert tokens == [tokenizer.eos]
    assert info["vocab_size"] == tokenizer.vocabulary_size
    assert info["chat_template"] == CHAT_TEMPLATE
    assert info["model_max_length"] == CONTEXT
