"""Packing a model's matrices as another type: smaller or faster, less exact. Only ever done when asked for.

Norms, biases and expert routers stay as they are, so does an embedding of its own (only rows of it are read). The
output matrix stays too if it is quantised already, else it becomes Q6_K (or Q8_0): llama.cpp keeps it above the
rest as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from longspan.model import metadata as values
from longspan.model.compose import EMBEDDING, OUTPUT, block_of, is_composed, write_gguf
from longspan.model.gguf_file import Tensor
from longspan.model.gguf_writer import NewTensor, copied
from longspan.model.metadata import MetadataValue
from longspan.model.progress import Progress, SilentProgress
from longspan.model.quantisation import PLAIN, requantised, row_type
from longspan.model.source import GgufSource
from longspan.model.storage import cache_directory, exclusive, explained
from longspan.model.tensor_types import FILE_TYPE_NAMES

_KEPT_WHOLE = ("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight")
"""Matrices that choose experts: small, and a wrong choice costs more than they save."""


def requantised_source(source: GgufSource, target: str, progress: Progress | None = None) -> GgufSource:
    """The model of `source` with its layers packed as `target`, as one GGUF file in the cache, reused from there.

    Raises ModelError when the type is unknown or the file cannot be written.
    """
    progress = progress or SilentProgress()
    row_type(target, 256)
    model_id = source.description.model_id
    path = cache_directory() / "requantised" / source.digest / f"{model_id}.{target}.gguf"
    if not is_composed(path):
        _write(source, target, path, progress)
    return GgufSource(path, model_id=model_id, progress=progress)


def _write(source: GgufSource, target: str, path: Path, progress: Progress) -> None:
    tied = source.description.tied_embeddings
    tensors = [packed(tensor, target, tied=tied) for tensor in source.file.tensors.values()]
    metadata = described_as(source.file.metadata, target)
    with explained(path), exclusive(path):
        if is_composed(path):
            return
        write_gguf(path, f"{source.description.model_id} as {target}", metadata, tensors, progress)


def described_as(metadata: Mapping[str, MetadataValue], target: str | None) -> dict[str, MetadataValue]:
    """A model's metadata without what told about its shards, and with the file type of `target`."""
    kept = {key: value for key, value in metadata.items() if not key.startswith("split.")}
    if target is not None:
        numbers = {name: number for number, name in FILE_TYPE_NAMES.items()}
        kept["general.file_type"] = values.uint32(numbers.get(target, numbers.get(f"{target}_M", 0)))
    return kept


def packed(tensor: Tensor, target: str | None, *, tied: bool) -> NewTensor:
    """A tensor as it is written when `target` is asked for; None copies it.

    tied: the embedding is the output matrix too.
    """
    if target is None:
        return copied(tensor)
    if block_of(tensor.name) is not None:
        return _of_layer(tensor, target)
    if tensor.name == OUTPUT or (tied and tensor.name == EMBEDDING):
        return _of_output(tensor)
    return copied(tensor)


def _of_layer(tensor: Tensor, target: str) -> NewTensor:
    matrix = len(tensor.shape) > 1 and tensor.name.endswith(".weight") and "_norm" not in tensor.name
    if not matrix or tensor.name.endswith(_KEPT_WHOLE):
        return copied(tensor)
    kind = row_type(target, tensor.shape[0])
    return copied(tensor) if kind == tensor.type else requantised(tensor, kind)


def _of_output(tensor: Tensor) -> NewTensor:
    if tensor.type not in PLAIN:
        return copied(tensor)
    return requantised(tensor, row_type("Q6_K", tensor.shape[0]))
