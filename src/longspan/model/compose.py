"""Composing the GGUF of a stage: the blocks [start, end) renumbered from 0, with what llama.cpp needs around them.

No stage looks tokens up, so none has a tokenizer or the embedding. llama.cpp still asks for `token_embd.weight` and
an output head: a stage that is not the last gets one-row dummies (its head then costs nothing); the last stage gets
the real output matrix, under the name `token_embd.weight` when the architecture falls back to it, so that the
vocabulary is held once.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from longspan.errors import ArchitectureError, ModelError
from longspan.model.architecture import Architecture
from longspan.model.gguf_file import Tensor, read_gguf
from longspan.model.gguf_writer import NewTensor, copied, gguf_chunks, gguf_size, ones, zeros
from longspan.model.metadata import MetadataValue
from longspan.model.progress import Progress
from longspan.model.stage_metadata import LayerMetadata
from longspan.model.storage import atomic_file, check_space, exclusive, explained
from longspan.model.tensor_types import F32, smallest_type

COMPOSER_VERSION = 2
"""Part of a stage file's name in the cache; raised when the same range would be composed differently."""

_BLOCK = re.compile(r"^blk\.(\d{1,6})\.(.+)$")
EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"


_EVERYWHERE = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors outside the layers that every stage needs."""


def check_tensors(names: Iterable[str], layers: int) -> None:
    """Raise ArchitectureError for a tensor outside the layers that is not known, ModelError for a missing layer."""
    empty = set(range(layers))
    for name in names:
        block = block_of(name)
        if block is not None:
            empty.discard(block)
        elif name != EMBEDDING and not is_output(name) and name not in _EVERYWHERE:
            raise ArchitectureError(
                f"the model has the tensor {name}, of which Longspan does not know who needs it."
            )
    if empty:
        raise ModelError(f"the model has no tensors of the layer {min(empty)}; it is not complete. Get it again.")


def block_of(name: str) -> int | None:
    """The layer that a tensor belongs to; None for a tensor outside the layers."""
    match = _BLOCK.match(name)
    return None if match is None else int(match[1])


def is_output(name: str) -> bool:
    """Whether a tensor outside the layers is needed by the last stage only."""
    return name.split(".")[0] in ("output", "output_norm")


@dataclasses.dataclass(frozen=True)
class StageParts:
    """What a stage is composed from: the model's metadata and the tensors at hand, named as in the model.

    head: the names of the model's output norm and output matrix tensors, whether they are at hand or not.
    """

    architecture: Architecture
    metadata: LayerMetadata
    tensors: Mapping[str, Tensor]
    head: tuple[str, ...]
    width: int
    vocabulary: int


def _head(parts: StageParts, last: bool) -> list[NewTensor]:
    """Embedding, output norm and output matrix: the real ones on the last stage, else one-row dummies."""
    if not last:
        # The same names as in the model, or llama.cpp refuses the file.
        return [zeros(EMBEDDING, F32, (parts.width, 1)), *(_one_row(name, parts.width) for name in parts.head)]
    head = {name: copied(parts.tensors[name]) for name in parts.head}
    if OUTPUT not in head:
        return [copied(parts.tensors[EMBEDDING]), *head.values()]
    if parts.architecture.tied_fallback:
        del head[OUTPUT]
        return [copied(parts.tensors[OUTPUT], EMBEDDING), *head.values()]
    return [zeros(EMBEDDING, smallest_type(parts.width), (parts.width, parts.vocabulary)), *head.values()]


def _one_row(name: str, width: int) -> NewTensor:
    """A stand-in for a tensor of the head over a vocabulary of one. A norm of ones keeps the arithmetic finite."""
    if name.startswith("output_norm."):
        return ones(name, (width,)) if name.endswith(".weight") else zeros(name, F32, (width,))
    return zeros(name, F32, (width, 1) if name == OUTPUT else (1,))


def _stage_tensors(parts: StageParts, start: int, end: int) -> list[NewTensor]:
    tensors = _head(parts, last=end == parts.metadata.layers)
    for name, tensor in parts.tensors.items():
        match = _BLOCK.match(name)
        if match is None:
            if not is_output(name) and name != EMBEDDING:
                tensors.append(copied(tensor))
        elif start <= int(match[1]) < end:
            tensors.append(copied(tensor, f"blk.{int(match[1]) - start}.{match[2]}"))
    return tensors


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
        last = end == parts.metadata.layers
        metadata = parts.metadata.of_stage(start, end, parts.vocabulary if last else 1)
        tensors = _stage_tensors(parts, start, end)
        write_gguf(target, f"layers {start}-{end}", metadata, tensors, progress)
    return target


def write_gguf(
    target: Path,
    title: str,
    metadata: Mapping[str, MetadataValue],
    tensors: Sequence[NewTensor],
    progress: Progress,
) -> None:
    """Write a file that appears whole or not at all. Raises ModelError when the disk has no room, OSError."""
    size = gguf_size(metadata, tensors)
    check_space(target.parent, size)
    progress.start(title, size)
    try:
        with atomic_file(target) as file:
            for chunk in gguf_chunks(metadata, tensors):
                file.write(chunk)
                progress.advance(len(chunk))
    finally:
        progress.finish()
