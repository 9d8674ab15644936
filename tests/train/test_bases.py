"""What writes: llama.cpp for every architecture, PyTorch for plain ones, with the same numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs PyTorch: pip install 'longspan[train]'")

from longspan.model.source import GgufSource  # noqa: E402
from longspan.model.tokenizer import Tokenizer  # noqa: E402
from longspan.train.conversations import Conversations, turn_tokens  # noqa: E402
from longspan.train.llama_base import LlamaBase  # noqa: E402
from longspan.train.target import output_matrix, output_rule  # noqa: E402
from longspan.train.torch_base import TorchBase, is_plain  # noqa: E402
from longspan.train.writing import BaseModel, write_texts  # noqa: E402
from tests.tiny_models import write_tiny_model  # noqa: E402

CPU = torch.device("cpu")
STEPS = 6


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path / "cache"))


def model(folder: Path, architecture: str, **more: bool) -> GgufSource:
    return GgufSource(write_tiny_model(folder / f"{architecture}.gguf", architecture, **more))  # type: ignore[arg-type]


def run(base: BaseModel, rows: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Logits and hidden states of STEPS positions."""
    generator = np.random.default_rng(1)
    base.begin(rows, 32)
    found = [
        [part.clone().numpy() for part in base.step(generator.integers(3, 90, rows).astype(np.int32), position)]
        for position in range(STEPS)
    ]
    base.close()
    logits, hidden = zip(*found, strict=True)
    return np.stack(logits), np.stack(hidden)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_both_compute_the_same(tmp_path: Path, architecture: str) -> None:
    source = model(tmp_path, architecture, rotary_factors=architecture == "llama")
    assert is_plain(source)
    logits, hidden = run(TorchBase(source, CPU, torch.float32))
    expected_logits, expected_hidden = run(LlamaBase(source, 1))
    np.testing.assert_allclose(hidden, expected_hidden, atol=0.01 * np.abs(expected_hidden).max())
    np.testing.assert_allclose(logits, expected_logits, atol=0.01 * np.abs(expected_logits).max())


@pytest.mark.parametrize(
    ("architecture", "scale", "cap"),
    [
        ("llama", 1.0, None),
        ("gemma2", 1.0, 30.0),
        ("granite", 0.5, None),
        ("cohere2", 0.5, None),
        ("gemma", 1.0, None),
    ],
)
def test_the_way_from_states_to_logits_is_found(
    tmp_path: Path, architecture: str, scale: float, cap: float | None
) -> None:
    source = model(tmp_path, architecture)
    logits, hidden = (torch.tensor(part).flatten(0, 1) for part in run(LlamaBase(source, 1)))
    rule = output_rule(source, hidden, logits, output_matrix(source))
    assert rule.scale == pytest.approx(scale, rel=0.02)
    assert rule.cap == cap


def test_plain_is_what_pytorch_knows(tmp_path: Path) -> None:
    assert not is_plain(model(tmp_path, "gemma2"))
    assert not is_plain(model(tmp_path, "qwen3moe"))


def test_what_is_written_is_what_the_model_says(tmp_path: Path) -> None:
    source = model(tmp_path, "llama")
    tokenizer = Tokenizer(source.vocabulary_file())
    base = TorchBase(source, CPU, torch.float32)
    texts = write_texts(base, Conversations(turn_tokens(source, tokenizer), tokenizer, 6, 1), 6, 160, seed=1)
    base.close()
    assert texts.tokens.shape == texts.best.shape == (6, 160)
    assert 0.1 < texts.said.mean() < 0.9
    rows = output_matrix(source).rows(np.arange(source.description.vocabulary, dtype=np.int32))
    np.testing.assert_array_equal((texts.hidden.astype(np.float32) @ rows.T).argmax(-1)[:, :-1], texts.best[:, :-1])
