from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.tiny_models import REQUIRED_ARCHITECTURES, TINY_ARCHITECTURES, write_tiny_model
from tests.whole_model import WholeModel

PROMPT = (40, 41, 42, 80, 90, 7)


@pytest.mark.parametrize("architecture", TINY_ARCHITECTURES)
def test_llama_cpp_decodes_it_and_the_answer_depends_on_the_context(architecture: str, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", architecture)
    with WholeModel(path) as model:
        answer = model.greedy(PROMPT, 40)
        model.trim(0)
        # The same last twelve tokens after another beginning: another distribution.
        logits = model.run([*PROMPT, *answer])
        model.trim(0)
        other = model.run([*PROMPT[::-1], *PROMPT, *answer])
    assert np.isfinite(logits).all()
    assert len(set(answer)) >= 5
    assert 0.5 < logits.std() < 6
    assert np.abs(logits[-12:] - other[-12:]).max(axis=1).min() > 0.05


@pytest.mark.parametrize("weight_type", ["F16", "Q8_0"])
@pytest.mark.parametrize("architecture", REQUIRED_ARCHITECTURES)
def test_other_weight_types_load(architecture: str, weight_type: str, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", architecture, weight_type=weight_type)
    types = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    assert types["blk.0.attn_output.weight"] == weight_type
    assert types["output_norm.weight"] == "F32"
    with WholeModel(path) as model:
        assert np.isfinite(model.run(PROMPT)).all()


@pytest.mark.parametrize("tied", [False, True])
def test_tied_and_untied_output(tied: bool, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", "llama", tied=tied)
    names = {tensor.name for tensor in gguf.GGUFReader(path).tensors}
    assert ("output.weight" in names) is not tied
    with WholeModel(path) as model:
        assert len(set(model.greedy(PROMPT, 40))) >= 5


def test_the_seed_decides_the_weights(tmp_path: Path) -> None:
    first, again, other = (
        write_tiny_model(tmp_path / f"{index}.gguf", "llama", seed=seed).read_bytes()
        for index, seed in enumerate((1, 1, 2))
    )
    assert first == again
    assert first != other


def test_a_sliding_window_matters(tmp_path: Path) -> None:
    """Within the window the models agree; past it the narrow one sees less."""
    narrow = write_tiny_model(tmp_path / "narrow.gguf", "gemma3")
    wide = write_tiny_model(tmp_path / "wide.gguf", "gemma3", extra={"attention.sliding_window": 400})
    tokens = [3 + index * 7 % 250 for index in range(60)]
    with WholeModel(narrow) as first, WholeModel(wide) as second:
        difference = np.abs(first.run(tokens) - second.run(tokens)).max(axis=1)
    assert difference[:12].max() < 1e-4
    assert difference[20:].min() > 0.01
