"""A model on disk, from which stages are composed; and a GGUF file, of one or several shards, as one."""

from __future__ import annotations

import abc
import functools
from pathlib import Path

from longspan.errors import ModelError
from longspan.model import description as describe
from longspan.model.architecture import find_architecture
from longspan.model.compose import (
    COMPOSER_VERSION,
    EMBEDDING,
    OUTPUT,
    StageParts,
    check_tensors,
    compose_stage,
    is_composed,
    is_output,
)
from longspan.model.description import ModelDescription
from longspan.model.digest import file_digest
from longspan.model.embedding import TokenEmbedding
from longspan.model.gguf_file import GgufFile, Tensor
from longspan.model.progress import Progress, SilentProgress
from longspan.model.shards import open_model
from longspan.model.stage_metadata import LayerMetadata
from longspan.model.storage import cache_directory


class ModelSource(abc.ABC):
    """Where stages, token rows and the vocabulary come from."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress: Progress = progress or SilentProgress()

    @property
    @abc.abstractmethod
    def description(self) -> ModelDescription:
        """What the model is."""

    @property
    @abc.abstractmethod
    def digest(self) -> str:
        """sha256 (hex) that tells weights apart: two sources with the same digest give the same stages."""

    @property
    @abc.abstractmethod
    def path(self) -> Path:
        """The model file (of several shards the first), or the directory of the package."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Bytes of all files of the model."""

    @property
    @abc.abstractmethod
    def chat_template(self) -> str | None:
        """The Jinja text under `tokenizer.chat_template`."""

    @abc.abstractmethod
    def vocabulary_file(self) -> Path:
        """A GGUF that holds the tokenizer's metadata, for a load with `vocab_only`."""

    @abc.abstractmethod
    def token_embedding(self, library: str | None = None) -> TokenEmbedding:
        """The embedding for looking token rows up. library: as for `load_library`."""

    @abc.abstractmethod
    def _parts(self, start: int, end: int) -> StageParts:
        """The metadata and the tensors that the stage [start, end) needs."""

    @abc.abstractmethod
    def mtp_parts(self) -> StageParts | None:
        """What the model's own MTP layer is made from, see `model.nextn`; None when it is not there.

        Raises ModelError when files are missing or damaged.
        """

    @property
    def mtp_layers(self) -> int:
        """How many layers that draft the model has, by its metadata."""
        return self._layers.mtp_layers

    @property
    @abc.abstractmethod
    def _layers(self) -> LayerMetadata:
        """The model's metadata, layer by layer."""

    def check_range(self, start: int, end: int) -> None:
        """Raise ModelError when the model has no such layers, ArchitectureError when it cannot be cut there."""
        layers = self._layers.layers
        if not 0 <= start < end <= layers:
            raise ModelError(f"a stage of the layers {start}-{end} is not possible: the model has {layers} layers.")
        self._layers.check_range(start, end)

    def stage_file(self, start: int, end: int) -> Path:
        """The GGUF of the layers [start, end), renumbered from 0; composed into the cache, reused from there.

        It has no tokenizer. A stage that ends with the last layer carries the output norm and the output matrix.
        Safe to call from several processes at once. Raises ModelError for a range that the model does not have, for
        source files that are damaged, and when the cache cannot be written.
        """
        self.check_range(start, end)
        name = f"{start:04d}-{end:04d}-v{COMPOSER_VERSION}.gguf"
        target = cache_directory() / "stages" / self.digest / name
        if is_composed(target):
            return target
        return compose_stage(self._parts(start, end), start, end, target, self._progress)


class GgufSource(ModelSource):
    """A GGUF file, or the first shard of one that is split into several files."""

    def __init__(self, path: Path, *, model_id: str | None = None, progress: Progress | None = None) -> None:
        """Read and check the header.

        Raises ModelError when the file cannot be read or is no language model, ArchitectureError when its
        architecture cannot be split.
        """
        super().__init__(progress)
        self.file = open_model(path)
        self.architecture = find_architecture(self.file.architecture)
        self._layer_metadata = LayerMetadata(self.architecture, self.file.metadata, describe.blocks_of(self.file))
        check_tensors(self.file.tensors, self._layer_metadata.layers)
        self._description = self._describe(model_id)

    def _describe(self, model_id: str | None) -> ModelDescription:
        file, name = self.file, self.architecture.name
        width = describe.width_of(file)
        embedding = embedding_of(file)
        return ModelDescription(
            model_id=model_id or describe.model_id_of(self.path),
            name=str(file.value("general.name") or describe.model_id_of(self.path)),
            architecture=name,
            layers=self._layer_metadata.layers,
            width=width,
            vocabulary=describe.vocabulary_of(embedding, width),
            context_length=describe.context_length_of(file),
            quantisation=describe.quantisation_of(_file_type(file), file.tensors),
            embedding_scale=describe.embedding_scale_of(self.architecture, file, width),
            activation_dtypes=self._layer_metadata.activation_dtypes,
            tied_embeddings=OUTPUT not in file.tensors,
            cut_multiple=self.architecture.cut_multiple,
        )

    @property
    def description(self) -> ModelDescription:
        return self._description

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.file.paths)

    @functools.cached_property
    def digest(self) -> str:
        """sha256 of the file; of several shards, over their bytes in order. Computed once, then noted."""
        return file_digest(self.file.paths, self._progress)

    @property
    def chat_template(self) -> str | None:
        return chat_template_of(self.file)

    def vocabulary_file(self) -> Path:
        return self.path

    def token_embedding(self, library: str | None = None) -> TokenEmbedding:
        return TokenEmbedding(self.file.tensors[EMBEDDING], self._description.embedding_scale, library)

    def mtp_parts(self) -> StageParts | None:
        return self._parts(0, self._description.layers) if self.mtp_layers else None

    @property
    def _layers(self) -> LayerMetadata:
        return self._layer_metadata

    def _parts(self, start: int, end: int) -> StageParts:
        known = self._description
        return StageParts(
            architecture=self.architecture,
            metadata=self._layer_metadata,
            tensors=self.file.tensors,
            head=tuple(name for name in self.file.tensors if is_output(name)),
            width=known.width,
            vocabulary=known.vocabulary,
        )


def embedding_of(file: GgufFile) -> Tensor:
    """The token embedding of a file. Raises ModelError when it has none."""
    embedding = file.tensors.get(EMBEDDING)
    if embedding is None:
        raise ModelError(f"{file.path} has no {EMBEDDING}; it is not a complete language model.")
    return embedding


def chat_template_of(file: GgufFile) -> str | None:
    """The Jinja text under `tokenizer.chat_template`."""
    value = file.value("tokenizer.chat_template")
    return value if isinstance(value, str) else None


def _file_type(file: GgufFile) -> int | None:
    value = file.value("general.file_type")
    return value if isinstance(value, int) else None
