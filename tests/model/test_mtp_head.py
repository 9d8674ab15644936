"""Heads on disk: reading, writing, refusing, finding."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save_file

from longspan.errors import ModelError
from longspan.model.mtp_head import find_head, read_head, write_head
from longspan.model.source import GgufSource
from tests.tiny_heads import tiny_head, write_tiny_head
from tests.tiny_models import write_tiny_model

Tensors = dict[str, npt.NDArray[Any]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> GgufSource:
    return GgufSource(write_tiny_model(tmp_path_factory.mktemp("head") / "tiny.gguf", "llama"))


@pytest.fixture
def path(source: GgufSource, tmp_path: Path) -> Path:
    return write_tiny_head(tmp_path / "head.safetensors", source)


def test_a_written_head_is_read_as_it_was(source: GgufSource, tmp_path: Path) -> None:
    head = tiny_head(source, vocabulary=50)
    write_head(head, tmp_path / "head.safetensors", {"license": "none"})
    found = read_head(tmp_path / "head.safetensors")
    assert found.width == source.description.width
    assert (found.base_digest, found.head_count, found.head_count_kv) == (source.digest, 4, 2)
    assert (found.rms_epsilon, found.rope_base) == (1e-5, 10000.0)
    assert set(found.block) == set(head.block)
    for field in ("eh_proj", "embedding_norm", "hidden_norm", "output_norm", "prefix_hidden"):
        assert np.array_equal(getattr(found, field), getattr(head, field).astype(np.float16).astype(np.float32))
    assert found.draft_vocabulary is not None
    assert found.draft_vocabulary.tolist() == list(range(50))
    assert found.prefix_tokens.tolist() == head.prefix_tokens.tolist()


def test_prefix_and_vocabulary_may_be_missing(source: GgufSource, tmp_path: Path) -> None:
    found = read_head(write_tiny_head(tmp_path / "head.safetensors", source, prefix=0))
    assert found.draft_vocabulary is None
    assert len(found.prefix_tokens) == len(found.prefix_hidden) == 0


def test_the_demo_has_its_head(demo: Path) -> None:
    source = GgufSource(demo)
    path = find_head(source)
    assert path is not None
    head = read_head(path)
    assert head.base_digest == source.digest
    assert head.width == source.description.width
    assert head.draft_vocabulary is not None
    assert 2 in head.draft_vocabulary  # the end of a turn can be drafted


def test_a_head_is_found_by_name_when_the_model_was_requantised(demo: Path, source: GgufSource) -> None:
    class Requantised(GgufSource):
        digest = "0" * 64

    assert find_head(Requantised(demo)) is not None
    assert find_head(source) is None


def _without(name: str) -> Callable[[Tensors], None]:
    def remove(tensors: Tensors) -> None:
        del tensors[name]

    return remove


def _with(name: str, change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: np.ascontiguousarray(change(tensors[name]))})


DAMAGES: dict[str, Callable[[Tensors], None]] = {
    "eh_proj.weight is missing": _without("eh_proj.weight"),
    "layer.attn_q.weight is missing": _without("layer.attn_q.weight"),
    "eh_proj.weight has the shape": _with("eh_proj.weight", lambda old: old[:, 1:]),
    "layer.attn_k.weight is float16 of shape": _with("layer.attn_k.weight", lambda old: old[1:]),
    "output_norm.weight is int32": _with("output_norm.weight", lambda old: old.astype(np.int32)),
    "hidden_norm.weight holds numbers that are not finite": _with("hidden_norm.weight", lambda old: old * np.inf),
    "its block has tensors that are not known: layer.extra": _with("layer.extra", lambda old: old),
    "prefix_hidden is float16 of shape": _with("prefix_hidden", lambda old: old[1:]),
    "prefix_tokens holds something that is no token id": _with("prefix_tokens", lambda old: old - 100),
    "draft_vocabulary is float32": _with("draft_vocabulary", lambda old: old.astype(np.float32)),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_a_damaged_head_is_refused_by_what_is_wrong(source: GgufSource, tmp_path: Path, message: str) -> None:
    good = write_tiny_head(tmp_path / "good.safetensors", source, vocabulary=50)
    tensors = dict(load_file(good))
    if message.endswith("extra"):
        tensors["layer.extra"] = np.zeros(3, np.float16)
    DAMAGES[message](tensors)
    metadata = {"head_count": "4", "head_count_kv": "2", "rms_epsilon": "1e-5", "rope_base": "10000"}
    save_file(tensors, tmp_path / "bad.safetensors", metadata)
    with pytest.raises(ModelError, match=message):
        read_head(tmp_path / "bad.safetensors")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("head_count", None, "no number under 'head_count'"),
        ("head_count", "many", "no number under 'head_count'"),
        ("head_count", "5", "5 heads and 2 key-value heads do not fit"),
        ("head_count_kv", "3", "4 heads and 3 key-value heads do not fit"),
        ("head_count", "2.5", "expected a whole number"),
        ("rope_base", "-1", "'rope_base' is -1"),
        ("rms_epsilon", "nan", "'rms_epsilon' is nan"),
    ],
)
def test_metadata_that_makes_no_sense_is_refused(path: Path, key: str, value: str | None, message: str) -> None:
    metadata = {"head_count": "4", "head_count_kv": "2", "rms_epsilon": "1e-5", "rope_base": "10000"}
    metadata.pop(key)
    if value is not None:
        metadata[key] = value
    save_file(dict(load_file(path)), path, metadata)
    with pytest.raises(ModelError, match=message):
        read_head(path)


@pytest.mark.parametrize("kept", [0, 7, 100, 5000])
def test_a_truncated_head_is_refused(path: Path, kept: int) -> None:
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelError, match="no safetensors file"):
        read_head(path)


def test_a_head_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nothing\.safetensors cannot be read"):
        read_head(tmp_path / "nothing.safetensors")


def test_a_head_that_cannot_be_written_says_so(source: GgufSource, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    head = dataclasses.replace(tiny_head(source), base="other")
    with pytest.raises(ModelError, match="cannot write"):
        write_head(head, tmp_path / "file" / "head.safetensors")
