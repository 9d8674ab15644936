from __future__ import annotations

import time
from pathlib import Path

import gguf
import numpy as np
import pytest

from longspan.errors import ModelError
from longspan.model.embedding import TokenEmbedding
from longspan.model.gguf_file import Tensor
from longspan.model.quantisation import TARGETS, requantised
from longspan.model.source import GgufSource
from longspan.model.tensor_types import F32, TENSOR_TYPES, TensorType
from tests.tiny_models import write_tiny_model

WIDTH, ROWS = 256, 64
NAMES = ("F32", "F16", "BF16", *TARGETS, "Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "MXFP4", "TQ1_0")


def embedding_of(kind: TensorType, path: Path) -> Tensor:
    values = np.random.default_rng(3).standard_normal((ROWS, WIDTH), dtype=np.float32)
    path.write_bytes(values.tobytes())
    plain = Tensor("token_embd.weight", F32, (WIDTH, ROWS), path, 0, values.nbytes)
    if kind == F32:
        return plain
    if kind.name in ("F16", "BF16"):
        data = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind.name]).tobytes()
    else:
        data = b"".join(requantised(plain, kind).chunks())
    packed = path.with_suffix(".packed")
    packed.write_bytes(b"\0" * 32 + data)
    return Tensor("token_embd.weight", kind, (WIDTH, ROWS), packed, 32, len(data))


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_every_type_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    kind = next(kind for kind in TENSOR_TYPES.values() if kind.name == name)
    tensor = embedding_of(kind, tmp_path / "values")
    raw = np.frombuffer(tensor.path.read_bytes()[tensor.offset :], np.uint8).reshape(ROWS, -1)
    numbers = gguf.GGMLQuantizationType(kind.number)
    reference = gguf.quants.dequantize(raw.view(np.float32) if kind == F32 else raw, numbers)
    tokens = np.array([5, 0, 63, 5], np.int32)
    rows = TokenEmbedding(tensor, 1.0).rows(tokens)
    assert rows.dtype == np.float32
    assert rows.shape == (4, WIDTH)
    assert rows.flags.c_contiguous
    np.testing.assert_allclose(rows, reference[tokens], rtol=1e-6)
    scaled = TokenEmbedding(tensor, 3.0).rows(tokens)
    assert np.array_equal(scaled, rows * np.float32(3.0))


def test_a_scaled_lookup_leaves_the_file_alone(tmp_path: Path) -> None:
    tensor = embedding_of(F32, tmp_path / "values")
    before = tensor.path.read_bytes()
    embedding = TokenEmbedding(tensor, 2.0)
    first = embedding.rows(np.array([1], np.int32))
    assert np.array_equal(first, embedding.rows(np.array([1], np.int32)))
    assert tensor.path.read_bytes() == before


@pytest.mark.parametrize("token", [-1, ROWS, 2**31 - 1])
def test_a_token_outside_the_vocabulary(token: int, tmp_path: Path) -> None:
    embedding = TokenEmbedding(embedding_of(F32, tmp_path / "values"), 1.0)
    with pytest.raises(ModelError, match=f"outside the vocabulary of {ROWS}: .*{token}"):
        embedding.rows(np.array([0, token], np.int32))


def test_no_tokens_give_no_rows(tmp_path: Path) -> None:
    assert TokenEmbedding(embedding_of(F32, tmp_path / "values"), 1.0).rows(np.zeros(0, np.int32)).shape == (
        0,
        WIDTH,
    )


def test_a_type_that_is_no_weight(tmp_path: Path) -> None:
    tensor = embedding_of(F32, tmp_path / "values")
    integers = Tensor(tensor.name, TENSOR_TYPES[26], tensor.shape, tensor.path, 0, tensor.size)
    with pytest.raises(ModelError, match="rows of the type I32 cannot be unpacked"):
        TokenEmbedding(integers, 1.0)


def test_a_file_that_was_cut_since(tmp_path: Path) -> None:
    tensor = embedding_of(F32, tmp_path / "values")
    tensor.path.write_bytes(b"\0" * 100)
    with pytest.raises(ModelError, match="was cut"):
        TokenEmbedding(tensor, 1.0)


def test_gemma_rows_carry_the_root_of_the_width(tmp_path: Path) -> None:
    source = GgufSource(write_tiny_model(tmp_path / "model.gguf", "gemma3"))
    assert source.description.embedding_scale == 8.0
    embedding = source.token_embedding()
    tensor = source.file.tensors["token_embd.weight"]
    data = np.fromfile(tensor.path, np.float32, 64, offset=tensor.offset)
    assert np.array_equal(embedding.rows(np.array([0], np.int32))[0], data * np.float32(8))


def test_one_row_of_the_demo_takes_less_than_fifty_microseconds(demo: Path) -> None:
    embedding = GgufSource(demo).token_embedding()
    token = np.array([77], np.int32)
    times = []
    for _ in range(2000):
        started = time.perf_counter()
        embedding.rows(token)
        times.append(time.perf_counter() - started)
    assert sorted(times)[len(times) // 2] < 50e-6
