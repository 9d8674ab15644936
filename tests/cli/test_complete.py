"""`longspan complete` on the demo model."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from longspan.cli.main import main

PROMPT = "The capital of France is"


SMALL = ["--threads", "1", "--slots", "1", "--context", "256"]


def complete(*arguments: str, prompt: str = PROMPT) -> dict[str, Any]:
    """Run the command in this process and give its JSON."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["complete", "demo", "--prompt", prompt, "--json", *SMALL, *arguments]) == 0
    answer: dict[str, Any] = json.loads(out.getvalue())
    return answer


@pytest.fixture(scope="module")
def greedy() -> dict[str, Any]:
    """The answer of the whole model to PROMPT, 12 tokens long."""
    return complete("--max-tokens", "12")


def test_the_tokens_are_the_same_for_every_split_and_delay(greedy: dict[str, Any]) -> None:
    split = complete("--max-tokens", "12", "--stages", "2", "--link-delay", "5")
    assert len(greedy["tokens"]) == 12
    assert (split["tokens"], split["text"]) == (greedy["tokens"], greedy["text"])
    assert greedy["finish_reason"] == "length"
    assert greedy["timings"]["generated_tokens"] == 12
    assert greedy["timings"]["tokens_per_second"] > 0


def test_seeded_tokens_too_are_the_same_for_every_split(greedy: dict[str, Any]) -> None:
    sampling = ("--max-tokens", "12", "--temperature", "1.5", "--seed", "7")
    whole = complete(*sampling)
    assert whole["tokens"] != greedy["tokens"]
    assert complete(*sampling, "--splits", "0-7,7-30", "--stages", "2")["tokens"] == whole["tokens"]


def test_text_is_streamed_without_json(greedy: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["complete", "demo", "--prompt", PROMPT, "--max-tokens", "12", *SMALL]) == 0
    assert capsys.readouterr().out == greedy["text"] + "\n"


def test_the_prompt_can_come_from_standard_input(greedy: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT))
    assert complete("--max-tokens", "4", prompt="-")["tokens"] == greedy["tokens"][:4]


def test_the_prompt_can_come_from_a_file(
    greedy: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text(PROMPT)
    assert main(["complete", "demo", "--file", str(path), "--max-tokens", "4", "--json", *SMALL]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == greedy["tokens"][:4]
    # Piped in, no option is needed.
    monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT))
    assert main(["complete", "demo", "--max-tokens", "4", "--json", *SMALL]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == greedy["tokens"][:4]


def test_a_batch(greedy: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[Any] = [
        {"prompt": PROMPT, "id": "first"},
        {"messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 3},
        {"prompt": "word " * 400},
        {"prompt": PROMPT, "temprature": 1},
        {"prompt": PROMPT, "temperature": 1.5, "seed": 7, "max_tokens": 12, "id": 5},
        {"prompt": [1, 2, 3], "max_tokens": 0},
        {"prompt": PROMPT, "messages": []},
    ]
    source, target = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    source.write_text("\n\n".join(map(json.dumps, lines)) + "\nnot JSON\n")
    arguments = ["--batch", str(source), "--output", str(target), "--max-tokens", "6"]
    assert main(["complete", "demo", *arguments, *SMALL]) == 1
    answers = [json.loads(line) for line in target.read_text().splitlines()]
    assert [answer["id"] for answer in answers] == ["first", 2, 3, 4, 5, 6, 7, 8]
    assert answers[0]["tokens"] == greedy["tokens"][:6]
    assert len(answers[1]["tokens"]) == 3
    assert len(answers[4]["tokens"]) == 12
    assert answers[4]["tokens"] != greedy["tokens"]
    errors = {answer["id"]: answer["error"] for answer in answers if "error" in answer}
    assert set(errors) == {3, 4, 6, 7, 8}
    assert "temprature" in errors[4]["message"]
    assert (errors[3]["param"], errors[6]["param"], errors[7]["param"]) == ("prompt", "max_tokens", "prompt")
    captured = capsys.readouterr()
    assert "answering: 8 of 8" in captured.err
    assert "3 answered, 5 failed, 21 tokens" in captured.err
    assert captured.out == ""


def test_a_batch_through_pipes(
    greedy: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = b"".join(b'{"prompt": "%s", "max_tokens": %d}\n' % (PROMPT.encode(), count) for count in range(1, 8))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    assert main(["complete", "demo", "--batch", "-", *SMALL]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["tokens"] for answer in answers] == [greedy["tokens"][:count] for count in range(1, 8)]


def test_chat_puts_the_prompt_through_the_template(greedy: dict[str, Any]) -> None:
    chat = complete("--max-tokens", "4", "--chat")
    assert chat["timings"]["prompt_tokens"] > greedy["timings"]["prompt_tokens"]


def test_a_stop_text_ends_the_answer(greedy: dict[str, Any]) -> None:
    word = greedy["text"].split()[2]
    stopped = complete("--max-tokens", "12", "--stop", word)
    assert stopped["finish_reason"] == "stop"
    assert stopped["text"] == greedy["text"][: greedy["text"].index(word)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["complete", "no-such.gguf", "--prompt", "x"], "no such model: 'no-such.gguf'"),
        (["complete", "demo", "--prompt", "x", "--ring", "localhost"], "'localhost' is not an address"),
        (["complete", "demo", "--prompt", "x", "--ring", "localhost:1", "--stages", "2"], "leave --stages away"),
        (["complete", "demo", "--prompt", "x", "--stages", "31"], "31"),
        (["complete", "demo", "--prompt", "x", "--splits", "0-10,11-30"], "10"),
        (["complete", "demo", "--prompt", "long " * 400, *SMALL], "the prompt has 40"),
        (["complete", "demo", "--prompt", "x", "--file", "y"], "give one of them"),
        (["complete", "demo", "--file", "/no/such"], "cannot be read"),
        (["complete", "demo", "--prompt", "x", "--output", "y"], "belongs to --batch"),
        (["complete", "demo", "--batch", "/no/such.jsonl", *SMALL], "cannot be opened"),
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
