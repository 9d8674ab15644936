"""lm-eval's local completions: likelihoods of continuations over a split ring are those of the whole model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from longspan.model.reference import resolve
from tests.whole_model import WholeModel

pytestmark = [
    pytest.mark.conformance,
    # The packages that lm-eval needs warn of one another.
    pytest.mark.filterwarnings("default"),
]

QUESTIONS = (
    ("The capital of France is", (" Paris.", " Rome.", " a river.")),
    ("Water is made of hydrogen and", (" oxygen.", " gold.", " music and wine.")),
    ("Two and two are", (" four.", " five.", " the colour of the sea.")),
    ("The sun rises in the", (" east.", " west.", " cellar of the old house.")),
)
TASK = """
task: longspan_choices
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: 0
target_delimiter: ""
metric_list:
  - metric: acc
"""


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a task of its own, which needs nothing from anywhere."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    data = tmp_path / "questions.jsonl"
    lines = [json.dumps({"question": question, "choices": choices}) for question, choices in QUESTIONS]
    data.write_text("\n".join(lines))
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "choices.yaml").write_text(TASK.format(data=data))
    return folder


def direct(whole: WholeModel, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """Sum of the log-probabilities of a continuation, and whether it is the greedy one."""
    tokens = context + continuation
    whole.trim(0)
    # One at a time: of 64 rows and more at once llama.cpp would compute other bits.
    rows = np.concatenate([whole.run([token]) for token in tokens])[len(context) - 1 : -1].astype(np.float64)
    peaks = rows.max(axis=1)
    logprobs = rows[np.arange(len(continuation)), continuation] - peaks
    logprobs -= np.log(np.exp(rows - peaks[:, None]).sum(axis=1))
    return float(logprobs.sum()), bool((rows.argmax(axis=1) == continuation).all())


def test_local_completions(served: str, api: str, task: Path) -> None:
    import lm_eval
    from lm_eval.tasks import TaskManager

    results: dict[str, Any] = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "base_url": f"{api}/completions",
            "model": "default",
            "tokenizer_backend": "remote",
            "num_concurrent": 4,
            "max_length": 1024,
        },
        tasks=["longspan_choices"],
        task_manager=TaskManager(include_path=str(task), include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
    )
    samples = results["samples"]["longspan_choices"]
    assert len(samples) == len(QUESTIONS)

    def tokens(text: str) -> list[int]:
        body = {"prompt": text, "add_special_tokens": False}
        found: list[int] = httpx.post(f"{served}/tokenize", json=body).json()["tokens"]
        return found

    with WholeModel(resolve("demo").path) as whole:
        for sample in samples:
            question, choices = QUESTIONS[sample["doc_id"]]
            context = tokens(question)
            for choice, (found, greedy) in zip(choices, (answer[0] for answer in sample["resps"]), strict=True):
                wanted, likeliest = direct(whole, context, tokens(question + choice)[len(context) :])
                assert float(found) == pytest.approx(wanted, abs=1e-3)
                assert str(greedy) == str(likeliest)
    assert results["results"]["longspan_choices"]["acc,none"] >= 0.5
