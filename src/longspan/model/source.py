"""A model on disk, from which stages are composed: a GGUF file (one or several shards) or a layer package."""

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
    check_range,
    compose_stage,
)
from longspan.model.description import ModelDescription
from longspan.model.digest import file_digest
from longspan.model.embedding import TokenEmbedding
from longspan.model.gguf_file import GgufFile
from longspan.model.progress import Progress, SilentProgress
from longspan.model.shards import open_model
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

    def stage_file(self, start: int, end: int) -> Path:
        """The GGUF of the layers [start, end), renumbered from 0; composed into the cache, reused from there.

        It has no tokenizer. A stage that ends with the last layer carries the output norm and the output matrix.
        Safe to call from several processes at once. Raises ModelError for a range that the model does not have, for
        source files that are damaged, and when the cache cannot be written.
        """
        check_range(start, end, self.description.layers)
        name = f"{start:04d}-{end:04d}-v{COMPOSER_VERSION}.gguf"
        target = cache_directory() / "stages" / self.digest / name
        return compose_stage(self._parts(start, end), start, end, target, self._progress)


class GgufSource(ModelSource):
    """A GGUF file, or the first shard of one that is split into several files."""

    def __init__(self, path: Path, *, model_id: str | None = None, progress: Progress | None = None) -> None:
        """Read and check the header.

        Raises ModelError when the file cannot be read or is no language model, ArchitectureError when its
        architecture cannot be split.
        """
        super().__init__(progress)
        self.path = path
        self.file = open_model(path)
        self.architecture = find_architecture(self.file.architecture)
        self._description = self._describe(model_id)

    def _describe(self, model_id: str | None) -> ModelDescription:
        file, name = self.file, self.architecture.name
        layers, width = describe.layers_of(file), describe.width_of(file)
        embedding = file.tensors.get(EMBEDDING)
        if embedding is None:
            raise ModelError(f"{self.path} has no {EMBEDDING}; it is not a complete language model.")
        return ModelDescription(
            model_id=model_id or describe.model_id_of(self.path),
            name=str(file.value("general.name") or describe.model_id_of(self.path)),
            architecture=name,
            layers=layers,
            width=width,
            vocabulary=describe.vocabulary_of(embedding, width),
            context_length=describe.context_length_of(file),
            quantisation=describe.quantisation_of(_file_type(file), file.tensors),
            embedding_scale=describe.embedding_scale_of(self.architecture, file, width),
            activation_dtypes=self.architecture.activation_dtypes,
            tied_embeddings=OUTPUT not in file.tensors,
        )

    @property
    def description(self) -> ModelDescription:
        return self._description

    @functools.cached_property
    def digest(self) -> str:
        """sha256 of the file; of several shards, over their bytes in order. Computed once, then noted."""
        return file_digest(self.file.paths, self._progress)

    @property
    def chat_template(self) -> str | None:
        value = self.file.value("tokenizer.chat_template")
        return value if isinstance(value, str) else None

    def vocabulary_file(self) -> Path:
        return self.path

    def token_embedding(self, library: str | None = None) -> TokenEmbedding:
        return TokenEmbedding(self.file.tensors[EMBEDDING], self._description.embedding_scale, library)

    def _parts(self, start: int, end: int) -> StageParts:
        known = self._description
        return StageParts(
            self.architecture, self.file.metadata, self.file.tensors, known.layers, known.width, known.vocabulary
        )


def _file_type(file: GgufFile) -> int | None:
    value = file.value("general.file_type")
    return value if isinstance(value, int) else None
