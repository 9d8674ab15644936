"""The official openai client, unmodified, against the demo model split over two processes."""

from __future__ import annotations

import concurrent.futures
import time
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

from longspan.model.reference import resolve
from tests.whole_model import WholeModel

MODEL = "default"
QUESTIONS = (
    "Why is the sky blue?",
    "Name three rivers in Europe.",
    "Write a short poem about the sea.",
    "What is seven times eight?",
    "Tell me about the history of Rome.",
    "How do I boil an egg?",
    "What colours has a rainbow?",
    "Explain what a computer is.",
)


def messages(question: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": question}]


def ask(client: openai.OpenAI, question: str = QUESTIONS[0], **fields: Any) -> ChatCompletion:
    body: dict[str, Any] = {"temperature": 0, "max_tokens": 24, **fields}
    answer: ChatCompletion = client.chat.completions.create(model=MODEL, messages=messages(question), **body)
    return answer


def tokens_of(answer: ChatCompletion) -> list[int]:
    """Ids of the generated tokens; the answer was asked with `return_token_ids`."""
    found: list[int] = answer.choices[0].model_dump()["token_ids"]
    return found


def test_a_chat(client: openai.OpenAI) -> None:
    answer = ask(client)
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert len(choice.message.content or "") > 20
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 24
    assert answer.model == client.models.list().data[0].id


def test_the_tokens_are_those_of_the_unsplit_model(client: openai.OpenAI, served_demo: str) -> None:
    prompt = httpx.post(f"{served_demo}/tokenize", json={"messages": messages(QUESTIONS[0])}).json()["tokens"]
    answer = ask(client, extra_body={"return_token_ids": True})
    with WholeModel(resolve("demo").path) as whole:
        assert tokens_of(answer) == whole.greedy(prompt, 24)


def test_a_stream_is_the_same_answer(client: openai.OpenAI) -> None:
    whole = ask(client)
    stream = client.chat.completions.create(
        model=MODEL,
        messages=messages(QUESTIONS[0]),
        temperature=0,
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    *answer, last = chunks
    texts = [chunk.choices[0].delta.content or "" for chunk in answer]
    assert "".join(texts) == whole.choices[0].message.content
    assert len([text for text in texts if text]) > 10
    assert [chunk.choices[0].finish_reason for chunk in answer if chunk.choices[0].finish_reason] == ["length"]
    assert last.choices == []
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens


def test_eight_clients_at_once_get_what_they_get_alone(client: openai.OpenAI) -> None:
    def tokens(number: int) -> list[int]:
        sampling: dict[str, Any] = {"temperature": 0} if number % 2 else {"temperature": 0.9, "seed": number}
        answer = ask(client, QUESTIONS[number], max_tokens=12, extra_body={"return_token_ids": True}, **sampling)
        return tokens_of(answer)

    numbers = range(len(QUESTIONS))
    alone = [tokens(number) for number in numbers]
    with concurrent.futures.ThreadPoolExecutor(len(numbers)) as pool:
        together = list(pool.map(tokens, numbers))
    assert together == alone


def test_a_seed_is_an_answer(client: openai.OpenAI) -> None:
    def text(seed: int) -> str | None:
        return ask(client, temperature=1.2, seed=seed, max_tokens=16).choices[0].message.content

    assert text(7) == text(7)
    assert len({text(seed) for seed in range(4)}) > 1


def test_several_choices(client: openai.OpenAI) -> None:
    answer = ask(client, n=3, temperature=1.2, seed=7, max_tokens=16)
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len(set(texts)) > 1
    assert texts[0] == ask(client, temperature=1.2, seed=7, max_tokens=16).choices[0].message.content


def test_stop_strings_over_token_borders(client: openai.OpenAI) -> None:
    text = ask(client).choices[0].message.content
    assert text is not None
    # From the middle of a word into the next one: no token has these borders.
    space = text.index(" ", len(text) // 2)
    stop = text[space - 2 : space + 3]
    answer = ask(client, stop=[stop, "never said"]).choices[0]
    assert answer.message.content == text[: text.index(stop)]
    assert answer.finish_reason == "stop"
    kept = ask(client, stop=stop, extra_body={"include_stop_str_in_output": True}).choices[0]
    assert kept.message.content == text[: text.index(stop) + len(stop)]
    chunks = client.chat.completions.create(
        model=MODEL, messages=messages(QUESTIONS[0]), temperature=0, max_tokens=24, stop=stop, stream=True
    )
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert streamed == text[: text.index(stop)]


def test_stop_tokens_and_end_tokens(client: openai.OpenAI) -> None:
    tokens = tokens_of(ask(client, extra_body={"return_token_ids": True}))
    answer = ask(client, extra_body={"return_token_ids": True, "stop_token_ids": [tokens[5]]})
    assert tokens_of(answer) == tokens[: tokens.index(tokens[5]) + 1]
    assert answer.choices[0].finish_reason == "stop"
    short = "What is 2 + 2? Answer with one number."
    ended = ask(client, short, max_tokens=40)
    assert ended.choices[0].finish_reason == "stop"
    ignoring = ask(client, short, max_tokens=40, extra_body={"ignore_eos": True})
    assert ignoring.choices[0].finish_reason == "length"
    assert ignoring.usage is not None
    assert ignoring.usage.completion_tokens == 40
    assert (ignoring.choices[0].message.content or "").startswith(ended.choices[0].message.content or "?")
    assert ended.usage is not None
    minimum = ended.usage.completion_tokens + 5
    longer = ask(client, short, max_tokens=40, extra_body={"min_tokens": minimum})
    assert longer.usage is not None
    assert longer.usage.completion_tokens >= minimum


def test_logprobs(client: openai.OpenAI) -> None:
    choice = ask(client, logprobs=True, top_logprobs=3).choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert len(choice.logprobs.content) == 24
    assert (
        b"".join(bytes(entry.bytes or ()) for entry in choice.logprobs.content).decode() == choice.message.content
    )
    for entry in choice.logprobs.content:
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert len(values) == 3
        assert (entry.token, entry.logprob) == (entry.top_logprobs[0].token, values[0])
        assert entry.logprob <= 0


def test_logit_bias(client: openai.OpenAI) -> None:
    first = tokens_of(ask(client, max_tokens=1, extra_body={"return_token_ids": True}))[0]
    answer = ask(client, max_tokens=1, logit_bias={str(first): -100}, extra_body={"return_token_ids": True})
    assert tokens_of(answer)[0] != first


def test_completions(client: openai.OpenAI, served_demo: str) -> None:
    prompt = "The capital of France is"
    tokens = httpx.post(f"{served_demo}/tokenize", json={"prompt": prompt}).json()["tokens"]
    by_text = client.completions.create(model=MODEL, prompt=prompt, temperature=0, echo=True)
    by_tokens = client.completions.create(model=MODEL, prompt=[tokens, tokens], temperature=0, logprobs=2)
    assert by_text.choices[0].text == prompt + by_tokens.choices[0].text
    assert by_tokens.choices[0].text == by_tokens.choices[1].text
    assert "Paris" in by_tokens.choices[0].text
    assert by_text.usage is not None
    assert by_text.usage.completion_tokens == 16
    logprobs = by_tokens.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert "".join(logprobs.tokens) == by_tokens.choices[0].text
    chunks = client.completions.create(model=MODEL, prompt=prompt, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == by_tokens.choices[0].text


def test_how_likely_a_given_text_is(client: openai.OpenAI, served_demo: str) -> None:
    text = "The capital of France is Paris. The capital of Italy is Rome, and that of Spain is " + "Madrid. " * 30
    tokens = httpx.post(f"{served_demo}/tokenize", json={"prompt": text}).json()["tokens"]
    with WholeModel(resolve("demo").path) as whole:
        # Of 64 rows and more at once llama.cpp would compute other bits.
        parts = [whole.run(tokens[start : start + 32]) for start in range(0, len(tokens), 32)]
    rows = np.concatenate(parts).astype(np.float64)
    peaks = rows.max(axis=1, keepdims=True)
    logarithms = rows - peaks - np.log(np.exp(rows - peaks).sum(axis=1, keepdims=True))
    truth = logarithms[np.arange(len(tokens) - 1), tokens[1:]]
    # The second time its KV lies there already.
    for _ in range(2):
        answer = client.completions.create(
            model=MODEL, prompt=tokens, max_tokens=1, temperature=0, logprobs=1, echo=True
        ).choices[0]
        assert answer.logprobs is not None
        # The client's types know nothing of a token that nothing comes before.
        found = answer.logprobs.model_dump()
        first, *values, _ = found["token_logprobs"]
        assert (first, found["top_logprobs"][0]) == (None, None)
        np.testing.assert_allclose(values, truth, atol=1e-3)
        greedy = [
            value >= max(top.values()) for value, top in zip(values, found["top_logprobs"][1:-1], strict=True)
        ]
        assert greedy == (logarithms[:-1].argmax(axis=1) == tokens[1:]).tolist()
        assert answer.text.startswith(text)
    chat = ask(client, max_tokens=1, extra_body={"prompt_logprobs": 0, "return_token_ids": True}).model_dump()
    given = chat["prompt_token_ids"]
    assert [entry and list(entry) for entry in chat["prompt_logprobs"]] == [
        None,
        *[[str(token)] for token in given[1:]],
    ]


def test_metrics_of_an_answer(client: openai.OpenAI) -> None:
    metrics = ask(client, extra_body={"return_metrics": True}).model_dump()["metrics"]
    assert 0 < metrics["time_to_first_token_ms"] < 60_000
    assert metrics["tokens_per_second"] == pytest.approx(23_000 / metrics["generation_time_ms"])


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.model_dump()["root"] == "demo"
    assert client.models.retrieve(model.id) == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_errors_are_those_of_the_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-9", messages=messages("hi"))
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as too_long:
        ask(client, "far too long " * 500)
    assert too_long.value.code == "context_length_exceeded"
    assert "512" in too_long.value.message
    with pytest.raises(openai.BadRequestError) as unsupported:
        ask(client, extra_body={"temprature": 1})
    assert unsupported.value.param == "temprature"


async def test_the_asynchronous_client(served_demo: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{served_demo}/v1", api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=messages(QUESTIONS[1]), temperature=0, max_tokens=12, stream=True
        )
        texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
        answer = await client.chat.completions.create(
            model=MODEL, messages=messages(QUESTIONS[1]), temperature=0, max_tokens=12
        )
    assert "".join(texts) == answer.choices[0].message.content


def test_a_client_that_leaves_frees_its_slot(client: openai.OpenAI, served_demo: str) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=messages(QUESTIONS[4]),
        max_tokens=400,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    assert running(served_demo) == 1
    stream.close()
    deadline = time.monotonic() + 2
    while running(served_demo) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert running(served_demo) == 0


def running(url: str) -> int:
    """Requests that hold a slot, from the metrics."""
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        if line.startswith("vllm:num_requests_running{"):
            return int(float(line.rsplit(" ", 1)[1]))
    raise AssertionError("no such metric")


def test_two_stages_in_processes_of_their_own(served_demo: str) -> None:
    ring = httpx.get(f"{served_demo}/ring").json()
    assert [(stage["start"], stage["end"], stage["state"]) for stage in ring["stages"]] == [
        (0, 15, "ready"),
        (15, 30, "ready"),
    ]
    assert len({stage["pid"] for stage in ring["stages"]}) == 2
    assert httpx.get(f"{served_demo}/ready").json() == {"ready": True, "missing": []}
