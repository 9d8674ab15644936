"""The demo's head on the demo: drafts that the model accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from longspan.bench.acceptance import PROMPTS, Answer, measure_acceptance
from longspan.errors import ModelError
from longspan.model.reference import resolve
from longspan.model.source import GgufSource
from tests.tiny_models import write_tiny_model


def test_accepted_counts_up_to_the_first_wrong_token_and_the_end_of_the_answer() -> None:
    answer = Answer("", (1, 2, 3, 4), ((2, 3, 9), (3, 4, 5), (9, 4, 5), ()))
    assert answer.accepted() == [2, 2, 0]


def test_the_demo_accepts_what_its_head_drafts() -> None:
    found = measure_acceptance(resolve("demo"), prompts=[PROMPTS[-1]], tokens=128, length=4, least_chance=0.0)
    assert found.positions == sum(len(answer.tokens) - 1 for answer in found.answers)
    assert found.acceptance == tuple(sorted(found.acceptance, reverse=True))
    assert found.acceptance[0] > 0.5
    assert found.tokens_per_position > 2.2
    assert 1.8 < found.tokens_per_traversal <= 5
    assert 3.5 < found.drafts_per_traversal <= 4


def test_a_model_without_a_head_is_named(tmp_path: Path) -> None:
    source = GgufSource(write_tiny_model(tmp_path / "tiny.gguf", "llama"))
    with pytest.raises(ModelError, match="no MTP head for tiny"):
        measure_acceptance(source, prompts=["a"], tokens=4)
