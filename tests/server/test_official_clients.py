"""The official clients against refusals: they come back when they are told to, and give up when it is no use."""

from __future__ import annotations

import time
from collections.abc import Iterator

import anthropic
import httpx
import openai
import pytest

from longspan.errors import LongspanError, QueueFullError, RequestError, RingError
from longspan.request import GenerationRequest
from tests.server.scripted_engine import ScriptedEngine, ScriptedStream


@pytest.fixture
def official(client: httpx.Client) -> Iterator[openai.OpenAI]:
    """With retries, as it comes."""
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=2, timeout=30) as found:
        yield found


@pytest.fixture
def claude(client: httpx.Client) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=str(client.base_url), api_key="none", max_retries=2, timeout=30) as found:
        yield found


def refuse_first(engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, *refusals: LongspanError) -> list[float]:
    """The engine refuses so often and then answers; gives the times at which it was asked."""
    times: list[float] = []
    submit = engine.submit

    def refusing(request: GenerationRequest) -> ScriptedStream:
        times.append(time.monotonic())
        if len(times) <= len(refusals):
            raise refusals[len(times) - 1]
        return submit(request)

    monkeypatch.setattr(engine, "submit", refusing)
    return times


def test_a_full_queue_is_waited_for(
    official: openai.OpenAI, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = refuse_first(engine, monkeypatch, QueueFullError("the queue is full", retry_after=1.0))
    answer = official.chat.completions.create(model="default", messages=[{"role": "user", "content": "hi"}])
    assert answer.choices[0].message.content == "fine"
    first, second = times
    assert second - first >= 1.0


def test_also_by_the_other_client(
    claude: anthropic.Anthropic, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = refuse_first(engine, monkeypatch, QueueFullError("the queue is full", retry_after=1.0))
    answer = claude.messages.create(model="default", max_tokens=8, messages=[{"role": "user", "content": "hi"}])
    assert answer.content[0].type == "text"
    assert times[1] - times[0] >= 1.0


def test_what_stays_refused_is_told(
    official: openai.OpenAI, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = official.with_options(max_retries=0)
    refuse_first(engine, monkeypatch, *[RingError("stage 1 is missing")] * 2)
    with pytest.raises(openai.InternalServerError, match="stage 1 is missing") as missing:
        once.completions.create(model="default", prompt="x")
    assert (missing.value.status_code, missing.value.response.headers["retry-after"]) == (503, "5")
    with pytest.raises(openai.APIStatusError):
        once.responses.create(model="default", input="x")


def test_a_wrong_request_is_not_repeated(
    official: openai.OpenAI, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = refuse_first(engine, monkeypatch, *[RequestError("`seed` is too odd.", param="seed")] * 3)
    with pytest.raises(openai.BadRequestError, match="too odd") as refused:
        official.completions.create(model="default", prompt="x", seed=7)
    assert refused.value.param == "seed"
    assert len(times) == 1
