"""Heads composed for llama.cpp."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from longspan.errors import ModelError
from longspan.model.draft_model import DraftModel, Fusion, compose_draft_model
from longspan.model.embedding import TokenEmbedding
from longspan.model.gguf_file import read_gguf
from longspan.model.mtp_head import MtpHead
from longspan.model.source import GgufSource
from longspan.model.storage import CACHE_VARIABLE
from tests.tiny_heads import tiny_head
from tests.tiny_models import write_tiny_model


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GgufSource:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return GgufSource(write_tiny_model(tmp_path / "tiny.gguf", "llama", weight_type="Q8_0", tied=True))


def _compose(source: GgufSource, head: MtpHead, **fields: Any) -> DraftModel:
    stage = source.stage_file(source.description.layers - 1, source.description.layers)
    return compose_draft_model(head, stage, source.token_embedding(), source.digest, **fields)


def test_the_file_holds_one_block_and_the_rows_of_the_draft_vocabulary(source: GgufSource) -> None:
    chosen = np.array([3, 80, 7], np.int32)
    head = dataclasses.replace(tiny_head(source), draft_vocabulary=chosen, digest="a")
    model = _compose(source, head, vocabulary_type="Q8_0")
    file = read_gguf(model.file)
    assert file.architecture == "llama"
    assert file.integer("llama.block_count") == 1
    assert file.integer("llama.vocab_size") == 3
    block = {f"blk.0.{name}" for name in head.block}
    assert set(file.tensors) == {"token_embd.weight", "output_norm.weight"} | block
    assert model.vocabulary.tolist() == chosen.tolist()
    rows = TokenEmbedding(file.tensors["token_embd.weight"], 1.0).rows(np.arange(3, dtype=np.int32))
    assert np.array_equal(rows, source.token_embedding().rows(chosen))
    for name, values in head.block.items():
        tensor = file.tensors[f"blk.0.{name}"]
        assert tensor.shape == tuple(reversed(values.shape))
        if values.ndim == 2:
            assert tensor.type.name == "Q8_0"
            found = TokenEmbedding(tensor, 1.0).rows(np.arange(len(values), dtype=np.int32))
            assert np.abs(found - values).max() < np.abs(values).max() / 127


def test_a_model_with_an_output_matrix_drafts_with_that(tmp_path: Path, source: GgufSource) -> None:
    untied = GgufSource(write_tiny_model(tmp_path / "untied.gguf", "llama", weight_type="Q8_0", tied=False))
    model = _compose(untied, tiny_head(untied), vocabulary_type="Q8_0")
    rows = TokenEmbedding(read_gguf(model.file).tensors["token_embd.weight"], 1.0)
    every = np.arange(untied.description.vocabulary, dtype=np.int32)
    expected = TokenEmbedding(untied.file.tensors["output.weight"], 1.0).rows(every)
    assert np.array_equal(rows.rows(every), expected)
    assert np.array_equal(model.output.rows(every), expected)
    assert not np.array_equal(expected, model.embedding.rows(every))


def test_it_is_composed_once_for_each_head_type_and_vocabulary(source: GgufSource) -> None:
    head = dataclasses.replace(tiny_head(source), digest="a" * 64)
    first = _compose(source, head)
    stamp = first.file.stat().st_mtime_ns
    assert _compose(source, head).file.stat().st_mtime_ns == stamp
    others = {
        _compose(source, head, block_type="Q4_0").file,
        _compose(source, head, vocabulary_type="Q8_0").file,
        _compose(source, dataclasses.replace(head, digest="b" * 64)).file,
        _compose(source, dataclasses.replace(head, draft_vocabulary=np.array([1, 2], np.int32))).file,
        _compose(source, dataclasses.replace(head, draft_vocabulary=np.array([1, 3], np.int32))).file,
    }
    assert len(others - {first.file}) == 5


def test_a_file_that_was_cut_is_composed_again(source: GgufSource) -> None:
    head = tiny_head(source)
    file = _compose(source, head).file
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    assert _compose(source, head).file.read_bytes() == whole


def test_a_head_of_another_model_is_refused(tmp_path: Path, source: GgufSource) -> None:
    wide = GgufSource(write_tiny_model(tmp_path / "wide.gguf", "llama", width=128))
    with pytest.raises(ModelError, match="made for a width of 128, the model has 64"):
        _compose(source, tiny_head(wide))
    vocabulary = source.description.vocabulary
    head = dataclasses.replace(tiny_head(source), draft_vocabulary=np.array([vocabulary], np.int32))
    expected = f"names token {vocabulary}, the model's vocabulary ends at {vocabulary - 1}"
    with pytest.raises(ModelError, match=expected):
        _compose(source, head)


def test_a_stage_that_is_not_the_last_cannot_draft(source: GgufSource) -> None:
    first = source.stage_file(0, 1)
    # Its output matrix is a stand-in of one row.
    with pytest.raises(ModelError, match="the model's vocabulary ends at 0"):
        compose_draft_model(tiny_head(source), first, source.token_embedding(), source.digest)


def test_the_fusion_is_the_formula(source: GgufSource) -> None:
    head = tiny_head(source)
    generator = np.random.default_rng(1)
    embedded, hidden = generator.standard_normal((2, 6, head.width)).astype(np.float32)

    def norm(rows: npt.NDArray[Any], weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
        mean = (rows.astype(np.float64) ** 2).mean(axis=1, keepdims=True)
        return np.asarray(rows / np.sqrt(mean + head.rms_epsilon) * weight)

    halves = [norm(embedded, head.embedding_norm), norm(hidden, head.hidden_norm)]
    expected = np.concatenate(halves, axis=1) @ head.eh_proj.T.astype(np.float64)
    fusion = Fusion(head.eh_proj, head.embedding_norm, head.hidden_norm, head.rms_epsilon)
    found = fusion.token_half(embedded) + fusion.hidden_half(hidden)
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
