"""/v1/responses through the official openai client, against the demo model split over two processes."""

from __future__ import annotations

import openai
import pytest

MODEL = "default"
QUESTION = "Why is the sky blue?"


def test_a_response_is_the_answer_of_the_other_endpoint(client: openai.OpenAI) -> None:
    response = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=24, temperature=0)
    chat = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], max_tokens=24, temperature=0
    )
    assert response.output_text == chat.choices[0].message.content
    assert response.status == "incomplete"
    assert response.usage is not None
    assert chat.usage is not None
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.usage.output_tokens == 24


def test_a_stream_is_the_same_response(client: openai.OpenAI) -> None:
    whole = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=24, temperature=0)
    with client.responses.stream(model=MODEL, input=QUESTION, max_output_tokens=24, temperature=0) as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(texts) == whole.output_text
    assert len(texts) > 3
    plain = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=24, temperature=0, stream=True)
    events = list(plain)
    assert (events[0].type, events[-1].type) == ("response.created", "response.incomplete")


async def test_without_waiting(served_demo: str, client: openai.OpenAI) -> None:
    async with openai.AsyncOpenAI(base_url=f"{served_demo}/v1", api_key="none", timeout=60) as other:
        response = await other.responses.create(model=MODEL, input=QUESTION, max_output_tokens=8, temperature=0)
    same = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=8, temperature=0)
    assert response.output_text == same.output_text


def test_a_conversation(client: openai.OpenAI) -> None:
    first = client.responses.create(
        model=MODEL, input="Name a colour.", instructions="Be brief.", max_output_tokens=16, temperature=0
    )
    history = [
        {"role": "user", "content": "Name a colour."},
        *first.output,
        {"role": "user", "content": "Another."},
    ]
    second = client.responses.create(model=MODEL, input=history, max_output_tokens=8, temperature=0)  # type: ignore[arg-type]
    assert second.output_text
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens


def test_log_probabilities(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model=MODEL,
        input=QUESTION,
        max_output_tokens=4,
        temperature=0,
        top_logprobs=2,
        include=["message.output_text.logprobs"],
    )
    (entries,) = [part["logprobs"] for part in response.output[0].to_dict()["content"]]  # type: ignore[attr-defined]
    assert [len(entry["top_logprobs"]) for entry in entries] == [2] * 4


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, input=QUESTION, previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="gpt-9", input=QUESTION)
