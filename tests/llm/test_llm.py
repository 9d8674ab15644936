"""`LLM`: the same without an event loop, also split, from several threads, and when nobody closes it."""

from __future__ import annotations

import concurrent.futures
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

import longspan
from longspan import LLM
from longspan.errors import RequestError, RingError

QUESTION = "the one and the other"
UNCLOSED = """
import sys
from longspan import LLM
if __name__ == "__main__":
    llm = LLM(sys.argv[1], stages=2, threads=1, slots=1, context=64)
    print(llm.chat("the one", max_tokens=3, ignore_eos=True).tokens)
"""


@pytest.fixture
def llm(tiny: str) -> Iterator[LLM]:
    with LLM(tiny, threads=1, slots=2, context=128) as running:
        yield running


def test_it_answers(llm: LLM) -> None:
    answer = llm.chat(QUESTION, max_tokens=8, ignore_eos=True)
    assert len(answer.tokens) == 8
    pieces = list(llm.stream(QUESTION, max_tokens=8, ignore_eos=True))
    assert "".join(piece.text for piece in pieces) == answer.text
    texts = [piece.text for piece in llm.stream_text("in the", max_tokens=4, ignore_eos=True)]
    assert "".join(texts) == llm.generate("in the", max_tokens=4, ignore_eos=True)[0].text
    assert [len(one.tokens) for one in llm.generate(["in", "the"], max_tokens=3, ignore_eos=True)] == [3, 3]
    with pytest.raises(RequestError, match="max_tokens"):
        llm.chat(QUESTION, max_tokens=0)
    for piece in llm.stream(QUESTION, ignore_eos=True):
        assert piece.finish_reason is None
        break


def test_how_likely_a_prompt_is(llm: LLM) -> None:
    prompt = [40, 41, 42, 43, 44]
    (answer,) = llm.generate([prompt], max_tokens=1, prompt_logprobs=1, logprobs=1)
    assert len(answer.prompt_logprobs) == 4
    # What the model says of a token that it was given it also says of the one that it takes itself.
    token, logprob = answer.tokens[0], answer.logprobs[0].logprob
    (longer,) = llm.generate([[*prompt, token]], max_tokens=1, prompt_logprobs=1)
    assert longer.prompt_logprobs[-1].logprob == logprob
    assert longer.prompt_logprobs[:-1] == answer.prompt_logprobs
    assert longer.logprobs == ()


def test_several_threads_may_ask(llm: LLM) -> None:
    questions = [f"the {number}" for number in range(6)]

    def ask(question: str) -> tuple[int, ...]:
        return llm.chat(question, max_tokens=4, ignore_eos=True).tokens

    alone = [ask(question) for question in questions]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, questions)) == alone


def test_it_is_closed_once(tiny: str) -> None:
    before = set(threading.enumerate())
    llm = LLM(tiny, threads=1, slots=1, context=64)
    assert any(thread.name.startswith("longspan") for thread in set(threading.enumerate()) - before)
    llm.close()
    llm.close()
    # Threads of an event loop's pool end when the loop is collected; the engine's own are gone at once.
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("longspan")]
    with pytest.raises(RingError, match="closed"):
        llm.chat("x")
    with pytest.raises(RingError, match="closed"):
        list(llm.stream("x"))


def test_nobody_needs_to_close_it(tiny: str) -> None:
    command = [sys.executable, "-W", "error", "-c", UNCLOSED, tiny]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("(")


def test_the_package_gives_its_names_only_when_asked() -> None:
    loaded = "print('longspan.engine' in sys.modules)"
    code = f"import sys, longspan; {loaded}; longspan.LLM; {loaded}"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True)
    assert shown.stdout.split() == ["False", "True"]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        longspan.nothing  # noqa: B018
    assert {name for name in longspan.__all__ if getattr(longspan, name) is not None} == set(longspan.__all__)
