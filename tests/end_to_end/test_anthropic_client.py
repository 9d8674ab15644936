"""The official anthropic client, unmodified, against the demo model split over two processes, with speculation."""

from __future__ import annotations

from collections.abc import Iterator

import anthropic
import httpx
import openai
import pytest
from anthropic.types import MessageParam

MODEL = "default"
QUESTION = "Why is the sky blue?"
GREEDY = {"temperature": 0}
"""Newer versions of the client have no argument for it."""


@pytest.fixture
def claude(served_demo: str) -> Iterator[anthropic.Anthropic]:
    """Without retries: a test wants to see the first answer."""
    with anthropic.Anthropic(base_url=served_demo, api_key="none", max_retries=0, timeout=180) as client:
        yield client


def messages(text: str = QUESTION) -> list[MessageParam]:
    return [{"role": "user", "content": text}]


def text_of(message: anthropic.types.Message) -> str:
    (block,) = message.content
    assert block.type == "text"
    return block.text


def ask(client: anthropic.Anthropic, text: str = QUESTION, max_tokens: int = 24) -> anthropic.types.Message:
    return client.messages.create(model=MODEL, messages=messages(text), max_tokens=max_tokens, extra_body=GREEDY)


def test_a_message_is_the_answer_of_the_other_api(claude: anthropic.Anthropic, client: openai.OpenAI) -> None:
    message = ask(claude)
    chat = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], max_tokens=24, temperature=0
    )
    assert text_of(message) == chat.choices[0].message.content
    assert (message.role, message.stop_reason) == ("assistant", "max_tokens")
    assert chat.usage is not None
    usage = message.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == chat.usage.prompt_tokens
    assert usage.output_tokens == 24


def test_a_stream_is_the_same_message(claude: anthropic.Anthropic) -> None:
    whole = ask(claude)
    with claude.messages.stream(model=MODEL, messages=messages(), max_tokens=24, extra_body=GREEDY) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(pieces) == text_of(whole) == text_of(final)
    assert len(pieces) > 3
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)


async def test_without_waiting(served_demo: str, claude: anthropic.Anthropic) -> None:
    async with anthropic.AsyncAnthropic(base_url=served_demo, api_key="none", timeout=180) as client:
        message = await client.messages.create(model=MODEL, messages=messages(), max_tokens=8, extra_body=GREEDY)
    assert text_of(message) == text_of(ask(claude, max_tokens=8))


def test_stop_sequences(claude: anthropic.Anthropic) -> None:
    text = text_of(ask(claude))
    space = text.index(" ", len(text) // 2)
    stop = text[space - 2 : space + 3]
    message = claude.messages.create(
        model=MODEL, messages=messages(), max_tokens=24, extra_body=GREEDY, stop_sequences=["never said", stop]
    )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert text_of(message) == text[: text.index(stop)]
    assert ask(claude, "What is 2 + 2? Answer with one number.", 40).stop_reason == "end_turn"


def test_a_system_prompt_and_a_beginning(claude: anthropic.Anthropic) -> None:
    begun: list[MessageParam] = [*messages(), {"role": "assistant", "content": "The sky is"}]
    message = claude.messages.create(
        model=MODEL, messages=begun, max_tokens=8, extra_body=GREEDY, system="Be brief."
    )
    assert text_of(message).startswith(" ")
    plain = claude.messages.count_tokens(model=MODEL, messages=messages())
    more = claude.messages.count_tokens(model=MODEL, messages=messages(), system="Be brief.")
    assert plain.input_tokens > 0
    assert more.input_tokens != plain.input_tokens


def test_errors_are_the_clients_own(claude: anthropic.Anthropic, served_demo: str) -> None:
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="claude-9", messages=messages(), max_tokens=8)
    with pytest.raises(anthropic.BadRequestError, match="maximum context length") as refused:
        claude.messages.create(model=MODEL, messages=messages(), max_tokens=5000)
    assert refused.value.request_id
    picture: MessageParam = {
        "role": "user",
        "content": [{"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}}],
    }
    with pytest.raises(anthropic.BadRequestError, match="text only"):
        claude.messages.create(model=MODEL, messages=[picture], max_tokens=8)
    assert httpx.get(f"{served_demo}/health").status_code == 200


def test_the_model_is_listed(claude: anthropic.Anthropic) -> None:
    (model,) = claude.models.list().data
    assert claude.models.retrieve(model.id).display_name == model.id
