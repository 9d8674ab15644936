"""`longspan complete` on the demo model."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from longspan.cli.main import main

PROMPT = "The capital of France is"


def complete(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Run the command in this process and give its JSON."""
    assert main(["complete", "demo", "--prompt", PROMPT, "--threads", "1", "--json", *arguments]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


@pytest.mark.parametrize("sampling", [(), ("--temperature", "0.8", "--seed", "7")], ids=["greedy", "seeded"])
def test_the_tokens_are_the_same_for_every_split_and_delay(
    sampling: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    whole = complete(capsys, "--max-tokens", "12", *sampling)
    split = complete(capsys, "--max-tokens", "12", "--stages", "2", "--link-delay", "5", *sampling)
    assert len(whole["tokens"]) == 12
    assert (split["tokens"], split["text"]) == (whole["tokens"], whole["text"])
    assert whole["finish_reason"] == "length"
    assert whole["timings"]["generated_tokens"] == 12
    assert whole["timings"]["tokens_per_second"] > 0


def test_text_is_streamed_without_json(capsys: pytest.CaptureFixture[str]) -> None:
    answer = complete(capsys, "--max-tokens", "6")
    assert main(["complete", "demo", "--prompt", PROMPT, "--threads", "1", "--max-tokens", "6"]) == 0
    assert capsys.readouterr().out == answer["text"] + "\n"


def test_the_prompt_can_come_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = complete(capsys, "--max-tokens", "4")
    monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT))
    assert main(["complete", "demo", "--prompt", "-", "--threads", "1", "--json", "--max-tokens", "4"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == expected["tokens"]


def test_chat_puts_the_prompt_through_the_template(capsys: pytest.CaptureFixture[str]) -> None:
    raw = complete(capsys, "--max-tokens", "8")
    chat = complete(capsys, "--max-tokens", "8", "--chat")
    assert chat["timings"]["prompt_tokens"] > raw["timings"]["prompt_tokens"]
    assert chat["tokens"] != raw["tokens"]


def test_a_stop_text_ends_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    whole = complete(capsys, "--max-tokens", "12")
    word = whole["text"].split()[2]
    stopped = complete(capsys, "--max-tokens", "12", "--stop", word)
    assert stopped["finish_reason"] == "stop"
    assert stopped["text"] == whole["text"][: whole["text"].index(word)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["complete", "no-such.gguf", "--prompt", "x"], "no such model: 'no-such.gguf'"),
        (["complete", "demo", "--prompt", "x", "--ring", "localhost"], "'localhost' is not an address"),
        (["complete", "demo", "--prompt", "x", "--ring", "localhost:1", "--stages", "2"], "leave --stages away"),
        (["complete", "demo", "--prompt", "x", "--stages", "31"], "31"),
        (["complete", "demo", "--prompt", "x", "--splits", "0-10,11-30"], "10"),
        (["complete", "demo", "--prompt", "long " * 40, "--context", "16"], "the prompt has 4"),
    ],
)
def test_what_cannot_be_used_is_a_message_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_a_stage_that_does_not_answer_is_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["complete", "demo", "--prompt", "x", "--ring", "127.0.0.1:9"]) == 3
    assert "127.0.0.1:9" in capsys.readouterr().err
