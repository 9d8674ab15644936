"""The sizes that layers are placed by are those of the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from longspan.model.package_source import PackageSource
from longspan.model.progress import SilentProgress
from longspan.model.source import GgufSource
from longspan.model.split import split_model
from longspan.model.weights import weigh
from tests.model.mixture_models import write_mixture_model
from tests.tiny_models import write_tiny_model


@pytest.mark.parametrize("tied", [True, False])
def test_file_and_package_weigh_the_same(tmp_path: Path, tied: bool) -> None:
    write_tiny_model(tmp_path / "tiny.gguf", "llama", weight_type="Q8_0", tied=tied)
    source = GgufSource(tmp_path / "tiny.gguf")
    weights = weigh(source)
    sizes = {name: tensor.size for name, tensor in source.file.tensors.items()}
    assert weights.layers == tuple(
        sum(size for name, size in sizes.items() if name.startswith(f"blk.{layer}.")) for layer in range(4)
    )
    assert weights.head == sum(
        size
        for name, size in sizes.items()
        if name.startswith("output") or (tied and name.startswith("token_embd"))
    )
    split_model(source, tmp_path / "package", requantise=None, progress=SilentProgress())
    packed = weigh(PackageSource(tmp_path / "package"))
    assert packed.positions == weights.positions
    assert packed.refused == weights.refused == frozenset()
    # The files of a package have headers of their own.
    for inside, alone in zip((*weights.layers, weights.head), (*packed.layers, packed.head), strict=True):
        assert inside <= alone <= inside + 8192
    for start, end in ((0, 4), (1, 3)):
        stage = source.stage_file(start, end).stat().st_size
        needed = sum(weights.layers[start:end]) + weights.shared + (weights.head if end == 4 else 0)
        assert needed <= stage <= needed + 65536


def test_an_mtp_layer_that_drafts_is_on_the_last_stage(tmp_path: Path) -> None:
    source = GgufSource(write_mixture_model(tmp_path / "model.gguf", "glm4moe", draft=2))
    plain = GgufSource(write_mixture_model(tmp_path / "plain.gguf", "glm4moe"))
    weights, bare = weigh(source), weigh(plain)
    sizes = {name: tensor.size for name, tensor in source.file.tensors.items()}
    layer = sum(size for name, size in sizes.items() if name.startswith("blk.5."))
    assert len(weights.layers) == 5
    assert weights.head == 2 * bare.head + layer > bare.head + layer
    split_model(source, tmp_path / "package", requantise=None, progress=SilentProgress())
    assert weights.head <= weigh(PackageSource(tmp_path / "package")).head <= weights.head + 3 * 8192


def test_keys_and_values_are_counted_by_layer(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny.gguf", "llama", weight_type="Q8_0")
    source = GgufSource(tmp_path / "tiny.gguf")
    file = source.file
    heads, shared = file.integer("llama.attention.head_count"), file.integer("llama.attention.head_count_kv")
    key = file.integer("llama.attention.key_length", file.integer("llama.embedding_length") // heads)
    assert weigh(source).positions == (2 * shared * key * 2,) * 4


def test_cuts_that_are_not_possible_are_known(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny.gguf", "smollm3")
    source = GgufSource(tmp_path / "tiny.gguf")
    refused = weigh(source).refused
    assert refused == frozenset(
        (start, end)
        for start in range(1, source.description.layers)
        for end in range(start + 1, source.description.layers + 1)
        if start % source.description.cut_multiple
    )
