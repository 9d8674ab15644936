"""How large the parts of a model are, before any of them is loaded or moved."""

from __future__ import annotations

import dataclasses
import itertools

from longspan.errors import ArchitectureError
from longspan.model.compose import EMBEDDING, OUTPUT, block_of, is_output
from longspan.model.gguf_file import GgufFile, read_gguf
from longspan.model.nextn import carries_head
from longspan.model.package_source import PackageSource
from longspan.model.source import GgufSource, ModelSource

_BYTES = 2
"""Keys and values are float16."""


@dataclasses.dataclass(frozen=True)
class Weights:
    """Bytes. layers: of each layer. shared: what every stage holds besides. head: what only the last one holds, an
    MTP layer of the model included.

    positions: keys and values of one position, for each layer. refused: layer ranges that no stage can hold.
    """

    layers: tuple[int, ...]
    shared: int
    head: int
    positions: tuple[int, ...]
    refused: frozenset[tuple[int, int]]


def weigh(source: ModelSource) -> Weights:
    """The sizes of a model's parts; reads headers only, no tensors."""
    count = source.description.layers
    layers, head, shared = [0] * count, 0, 0
    if isinstance(source, PackageSource):
        for artifact in source.manifest.artifacts:
            if artifact.layer is not None:
                layers[artifact.layer] += artifact.bytes
        head = sum(
            source.manifest.artifact(role).bytes
            for role in (("embedding", "output") if source.description.tied_embeddings else ("output",))
        )
        if source.manifest.mtp is not None:
            head = 2 * head + source.manifest.mtp.bytes
        shared = sum(tensor.size for tensor in read_gguf(source.vocabulary_file()).tensors.values())
    elif isinstance(source, GgufSource):
        tied, drafts = OUTPUT not in source.file.tensors, carries_head(source)
        for name, tensor in source.file.tensors.items():
            block = block_of(name)
            if block is not None:
                if block < count:
                    layers[block] += tensor.size
                elif block == count and drafts:
                    head += tensor.size  # the MTP layer drafts on the last stage; others behind it are not used
            elif is_output(name) or (tied and name == EMBEDDING):
                # An MTP layer has the output matrix in its own file once more.
                head += (1 + drafts) * tensor.size
            elif name != EMBEDDING:
                shared += tensor.size
    positions = position_bytes(read_gguf(source.vocabulary_file()))[:count]
    return Weights(tuple(layers), shared, head, positions, _refused(source, count))


def position_bytes(file: GgufFile) -> tuple[int, ...]:
    """Bytes of keys and values of one position, for each layer of the file."""
    prefix = f"{file.architecture}."
    layers = file.integer(f"{prefix}block_count")
    heads = file.integer(f"{prefix}attention.head_count")
    width = file.integer(f"{prefix}embedding_length") // heads
    key = file.integer(f"{prefix}attention.key_length", width)
    value = file.integer(f"{prefix}attention.value_length", width)
    by_layer = file.value(f"{prefix}attention.head_count_kv")
    if not isinstance(by_layer, list):
        by_layer = [file.integer(f"{prefix}attention.head_count_kv", heads)] * layers
    return tuple(int(count) * (key + value) * _BYTES for count in by_layer)


def _refused(source: ModelSource, layers: int) -> frozenset[tuple[int, int]]:
    found = set()
    for start, end in itertools.combinations(range(layers + 1), 2):
        try:
            source.check_range(start, end)
        except ArchitectureError:
            found.add((start, end))
    return frozenset(found)
