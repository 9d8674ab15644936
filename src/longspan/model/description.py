"""What a model is, read from its metadata."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from longspan.errors import ModelError
from longspan.model.architecture import Architecture, EmbeddingScale
from longspan.model.gguf_file import GgufFile, Tensor
from longspan.model.tensor_types import FILE_TYPE_NAMES

_QUANTISATION_SUFFIX = re.compile(r"[.\-_](?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|NVFP4|F16|F32|BF16)$", re.IGNORECASE)
_SHARD_SUFFIX = re.compile(r"-\d{5}-of-\d{5}$")
_MAXIMUM_LAYERS = 4_096
_MAXIMUM_WIDTH = 1 << 20
_MAXIMUM_VOCABULARY = 1 << 24


@dataclasses.dataclass(frozen=True)
class ModelDescription:
    """A model in numbers.

    model_id: what requests call it. name: the name in the file. width: elements of an activation row. vocabulary:
    rows of the output matrix. context_length: positions that it was trained for. embedding_scale: factor on
    looked-up token rows, a float32 value. activation_dtypes: what activations may travel as, the default first.
    tied_embeddings: the embedding is the output matrix too.
    cut_multiple: stages can start at multiples of this only.
    """

    model_id: str
    name: str
    architecture: str
    layers: int
    width: int
    vocabulary: int
    context_length: int
    quantisation: str
    embedding_scale: float
    activation_dtypes: tuple[str, ...]
    tied_embeddings: bool
    cut_multiple: int


def model_id_of(path: Path) -> str:
    """The name of a model file without shard number and quantisation: `Some-1B.Q4_K_M.gguf` is `Some-1B`."""
    stem = path.name.removesuffix(".gguf")
    stem = _SHARD_SUFFIX.sub("", stem)
    return _QUANTISATION_SUFFIX.sub("", stem) or stem


def quantisation_of(file_type: int | None, tensors: Mapping[str, Tensor]) -> str:
    """The name of `general.file_type`, else the tensor type that holds most bytes."""
    if file_type in FILE_TYPE_NAMES:
        return FILE_TYPE_NAMES[file_type]
    totals: Counter[str] = Counter()
    for tensor in tensors.values():
        totals[tensor.type.name] += tensor.size
    return totals.most_common(1)[0][0] if totals else "unknown"


def embedding_scale_of(architecture: Architecture, file: GgufFile, width: int) -> float:
    """The factor on token rows as the float32 value that llama.cpp computes with."""
    if architecture.embedding_scale is EmbeddingScale.SQRT_WIDTH:
        return float(np.float32(math.sqrt(width)))
    if architecture.embedding_scale is EmbeddingScale.METADATA:
        return file.number(f"{architecture.name}.embedding_scale") or 1.0
    return 1.0


def bounded(value: int, limit: int, what: str, path: Path) -> int:
    """`value`, which must lie in [1, limit]. Raises ModelError naming it."""
    if not 1 <= value <= limit:
        raise ModelError(f"{path} is damaged: {what} is {value}, expected 1 to {limit}.")
    return value


def blocks_of(file: GgufFile) -> int:
    """`ARCH.block_count`: the layers, and after them the draft layers if there are some."""
    return bounded(file.integer(f"{file.architecture}.block_count"), _MAXIMUM_LAYERS, "the layer count", file.path)


def width_of(file: GgufFile) -> int:
    return bounded(file.integer(f"{file.architecture}.embedding_length"), _MAXIMUM_WIDTH, "the width", file.path)


def context_length_of(file: GgufFile) -> int:
    return bounded(
        file.integer(f"{file.architecture}.context_length", 2_048), 1 << 30, "the context length", file.path
    )


def vocabulary_of(embedding: Tensor, width: int) -> int:
    """Rows of the embedding. Raises ModelError when it is no matrix of the model's width."""
    if len(embedding.shape) != 2 or embedding.shape[0] != width:
        raise ModelError(
            f"{embedding.path} is damaged: {embedding.name} has the shape {embedding.shape}, "
            f"expected {width} columns."
        )
    return bounded(embedding.shape[1], _MAXIMUM_VOCABULARY, "the vocabulary", embedding.path)
