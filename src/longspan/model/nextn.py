"""The MTP layer that a model carries itself: tensors `blk.N.nextn.*` in the block N behind those that generate.

It is a head as in `model.mtp_head`, of the model's own architecture:

    u_(t+1) = nextn.eh_proj · [ RMSNorm(embed(x_(t+1))) · nextn.enorm ; RMSNorm(h_t) · nextn.hnorm ]
    g_(t+1) = RMSNorm(block(u_(t+1))) · nextn.shared_head_norm
    logits for x_(t+2) = nextn.shared_head_head · g_(t+1)

as llama.cpp's MTP graphs have it. A norm, output matrix or token embedding (`nextn.embed_tokens`) that the layer
lacks is the model's. The block becomes a GGUF of one layer, its tensors as they are; the fusion is done in numpy.
Of several such layers the first drafts every token.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from longspan.errors import ModelError
from longspan.model.architecture import find_architecture
from longspan.model.compose import EMBEDDING, OUTPUT, StageParts, block_of, is_composed, is_output, write_gguf
from longspan.model.draft_model import DraftModel, Fusion
from longspan.model.embedding import TokenEmbedding
from longspan.model.gguf_file import Tensor, read_gguf
from longspan.model.gguf_writer import NewTensor, copied
from longspan.model.mtp_head import Array, find_head
from longspan.model.package_source import PackageSource
from longspan.model.progress import SilentProgress
from longspan.model.source import ModelSource
from longspan.model.storage import cache_directory, exclusive, explained

_VERSION = 1
"""Part of the file's name in the cache; raised when the same layer would be composed differently."""

_OUTPUT_NORM = "output_norm.weight"
_EPSILON = "attention.layer_norm_rms_epsilon"


def obstacle(source: ModelSource) -> str:
    """Why the model's own MTP layers cannot draft; an empty string when they can, or when there are none."""
    if not source.mtp_layers:
        return ""
    name = source.description.architecture
    if find_architecture(name).mtp_hidden is None:
        return f"it is not known how those of {name} models are fed"
    if isinstance(source, PackageSource):
        # Whoever split the model looked at them; here the files may be elsewhere.
        return "" if source.manifest.mtp is not None else "the layer package was made without them"
    try:
        parts = source.mtp_parts()
        assert parts is not None
        _Layer(parts)
        parts.metadata.of_mtp_layer(parts.vocabulary)
    except ModelError as error:
        return str(error)
    return ""


def carries_head(source: ModelSource) -> bool:
    """Whether the model has an MTP layer of its own that can draft."""
    return source.mtp_layers > 0 and not obstacle(source)


def has_head(source: ModelSource) -> bool:
    """Whether there is anything that drafts from this model's hidden states."""
    return find_head(source) is not None or carries_head(source)


def compose_own_head(source: ModelSource, library: str | None = None) -> DraftModel:
    """Compose the GGUF of the model's own MTP layer into the cache, unless it is there.

    library: as for `load_library`. Raises ModelError when the model has none that can draft, its files are damaged,
    or the cache cannot be written.
    """
    parts = source.mtp_parts()
    if parts is None:
        raise ModelError(f"{source.path} has no MTP layer.")
    layer = _Layer(parts)
    target = cache_directory() / "heads" / source.digest / f"own-v{_VERSION}.gguf"
    with explained(target), exclusive(target):
        if not is_composed(target):
            metadata = parts.metadata.of_mtp_layer(parts.vocabulary)
            write_gguf(target, "the MTP layer", metadata, layer.composed(), SilentProgress())
    epsilon = read_gguf(target).number(f"{parts.architecture.name}.{_EPSILON}")
    if epsilon is None:
        raise ModelError(f"{source.path} does not say the epsilon of its norms ({_EPSILON}).")
    eh_proj, enorm, hnorm = (_floats(tensor, library) for tensor in (layer.eh_proj, layer.enorm, layer.hnorm))
    fusion = Fusion(eh_proj, enorm, hnorm, epsilon)
    return DraftModel(
        target,
        fusion,
        TokenEmbedding(layer.embedding, source.description.embedding_scale, library),
        TokenEmbedding(layer.output, 1.0, library),
        np.arange(parts.vocabulary, dtype=np.int32),
        np.zeros(0, np.int32),
        np.zeros((0, parts.width), np.float32),
        parts.architecture.input_tensor,
    )


class _Layer:
    """The tensors of the first MTP layer, checked, and those of the model that stand in for what it lacks."""

    def __init__(self, parts: StageParts) -> None:
        """Raises ModelError when a tensor is missing or has another shape than the fusion needs."""
        self._parts = parts
        self._number = parts.metadata.layers
        vocabulary = (parts.width, parts.vocabulary)
        own_output = OUTPUT if OUTPUT in parts.tensors else EMBEDDING
        self.eh_proj = self._found("eh_proj", (2 * parts.width, parts.width))
        self.enorm = self._found("enorm", (parts.width,))
        self.hnorm = self._found("hnorm", (parts.width,))
        self.norm = self._found("shared_head_norm", (parts.width,), _OUTPUT_NORM)
        self.output = self._found("shared_head_head", vocabulary, own_output)
        self.embedding = self._found("embed_tokens", vocabulary, EMBEDDING)

    def _found(self, name: str, shape: tuple[int, ...], otherwise: str = "") -> Tensor:
        tensors = self._parts.tensors
        full = f"blk.{self._number}.nextn.{name}.weight"
        tensor = tensors.get(full) or tensors.get(otherwise)
        if tensor is None:
            raise ModelError(f"the tensor {full} is missing; whoever made the file left it out")
        if tensor.shape != shape:
            raise ModelError(f"the tensor {tensor.name} has the shape {tensor.shape}, expected {shape}")
        return tensor

    def composed(self) -> list[NewTensor]:
        """The tensors of a model of this one layer, whose output matrix stands where the embedding would."""
        tensors = [copied(self.output, EMBEDDING), copied(self.norm, _OUTPUT_NORM)]
        fusion = f"blk.{self._number}.nextn."
        for name, tensor in self._parts.tensors.items():
            block = block_of(name)
            if block is None and name != EMBEDDING and not is_output(name):
                tensors.append(copied(tensor))
            elif block == self._number and not name.startswith(fusion):
                tensors.append(copied(tensor, f"blk.0.{name.removeprefix(f'blk.{block}.')}"))
        return tensors


def _floats(tensor: Tensor, library: str | None) -> Array:
    """A vector (n,) or a matrix (rows, columns) as float32."""
    columns, *rows = tensor.shape
    matrix = TokenEmbedding(dataclasses.replace(tensor, shape=(columns, *(rows or [1]))), 1.0, library)
    values = matrix.rows(np.arange(matrix.vocabulary, dtype=np.int32))
    return values if rows else values[0]
