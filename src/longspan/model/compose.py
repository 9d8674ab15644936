"""Composing the GGUF of a stage: the blocks [start, end) renumbered from 0, with what llama.cpp needs around them.

No stage looks tokens up, so none has a tokenizer or the embedding. llama.cpp still asks for `token_embd.weight` and
an output head: a stage that is not the last gets one-row dummies (its head then costs nothing); the last stage gets
the real output matrix, under the name `token_embd.weight` when the architecture falls back to it, so that the
vocabulary is held once.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

from longspan.errors import ModelError
from longspan.model import metadata as values
from longspan.model.architecture import Architecture, EmbeddingScale
from longspan.model.gguf_file import Tensor, read_gguf
from longspan.model.gguf_writer import NewTensor, constant, copied, gguf_chunks, gguf_size
from longspan.model.metadata import MetadataValue, ValueType
from longspan.model.progress import Progress
from longspan.model.storage import atomic_file, check_space, exclusive, explained

COMPOSER_VERSION = 1
"""Part of a stage file's name in the cache; raised when the same range would be composed differently."""

_BLOCK = re.compile(r"^blk\.(\d{1,6})\.(.+)$")
_DROPPED = ("tokenizer.", "split.", "general.languages", "general.tags", "general.description")
EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"


def block_of(name: str) -> int | None:
    """The layer that a tensor belongs to; None for a tensor outside the layers."""
    match = _BLOCK.match(name)
    return None if match is None else int(match[1])


def is_output(name: str) -> bool:
    """Whether a tensor outside the layers is needed by the last stage only."""
    return name.split(".")[0] in ("output", "output_norm")


@dataclasses.dataclass(frozen=True)
class StageParts:
    """What a stage is composed from: the model's metadata and the tensors at hand, named as in the model."""

    architecture: Architecture
    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, Tensor]
    layers: int
    width: int
    vocabulary: int


def _stage_metadata(parts: StageParts, start: int, end: int) -> dict[str, MetadataValue]:
    name = parts.architecture.name
    kept = {key: value for key, value in parts.metadata.items() if not key.startswith(_DROPPED)}
    for key, value in kept.items():
        if key.startswith(f"{name}.") and value.count == parts.layers:
            kept[key] = value.slice(start, end)
    period = parts.architecture.window_period
    pattern = f"{name}.attention.sliding_window_pattern"
    if period and not kept.get(pattern, values.uint32(0)).is_array:
        kept[pattern] = values.array(ValueType.BOOL, [layer % period < period - 1 for layer in range(start, end)])
    if parts.architecture.embedding_scale is EmbeddingScale.METADATA:
        kept[f"{name}.embedding_scale"] = values.scalar(ValueType.FLOAT32, 1.0)
    kept[f"{name}.block_count"] = values.uint32(end - start)
    kept[f"{name}.vocab_size"] = values.uint32(parts.vocabulary if end == parts.layers else 1)
    kept["tokenizer.ggml.model"] = values.text("no_vocab")
    return kept


def _head(parts: StageParts, last: bool) -> list[NewTensor]:
    """Embedding, output norm and output matrix: the real ones on the last stage, else one-row dummies."""
    outputs = [tensor for name, tensor in parts.tensors.items() if is_output(name)]
    if not last:
        # The names must be those that the architecture loads; a norm of ones keeps the dummy head finite.
        return [constant(EMBEDDING, (parts.width, 1), 0.0), constant("output_norm.weight", (parts.width,), 1.0)]
    if OUTPUT not in parts.tensors:
        return [copied(parts.tensors[EMBEDDING]), *map(copied, outputs)]
    rest = [copied(tensor) for tensor in outputs if tensor.name != OUTPUT]
    return [copied(parts.tensors[OUTPUT], EMBEDDING), *rest]


def _stage_tensors(parts: StageParts, start: int, end: int) -> list[NewTensor]:
    tensors = _head(parts, last=end == parts.layers)
    for name, tensor in parts.tensors.items():
        match = _BLOCK.match(name)
        if match is None:
            if not is_output(name) and name != EMBEDDING:
                tensors.append(copied(tensor))
        elif start <= int(match[1]) < end:
            tensors.append(copied(tensor, f"blk.{int(match[1]) - start}.{match[2]}"))
    return tensors


def check_range(start: int, end: int, layers: int) -> None:
    """Raise ModelError unless [start, end) is a non-empty range of the model's layers."""
    if not 0 <= start < end <= layers:
        raise ModelError(
            f"a stage of the layers {start}-{end} is not possible: the model has the layers 0-{layers}."
        )


def is_composed(target: Path) -> bool:
    """Whether the stage file is there, whole."""
    if not target.is_file():
        return False
    try:
        read_gguf(target)
    except ModelError:
        # Something outside Longspan cut it; it is composed again over the remains.
        return False
    return True


def compose_stage(parts: StageParts, start: int, end: int, target: Path, progress: Progress) -> Path:
    """Write the stage `[start, end)` to `target`, unless another process did meanwhile.

    Raises ModelError when a source file is cut meanwhile or the disk is full.
    """
    with explained(target), exclusive(target):
        if is_composed(target):
            return target
        metadata, tensors = _stage_metadata(parts, start, end), _stage_tensors(parts, start, end)
        size = gguf_size(metadata, tensors)
        check_space(target.parent, size)
        progress.start(f"layers {start}-{end}", size)
        try:
            with atomic_file(target) as file:
                for chunk in gguf_chunks(metadata, tensors):
                    file.write(chunk)
                    progress.advance(len(chunk))
        finally:
            progress.finish()
    return target
