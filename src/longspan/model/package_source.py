"""A layer package as the source of stages."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from longspan.errors import PackageError
from longspan.model import description as describe
from longspan.model.architecture import find_architecture
from longspan.model.compose import StageParts
from longspan.model.description import ModelDescription
from longspan.model.embedding import TokenEmbedding
from longspan.model.gguf_file import GgufFile, Tensor, read_gguf
from longspan.model.package import Artifact, artifact_path, check_artifacts, read_manifest
from longspan.model.progress import Progress
from longspan.model.source import ModelSource, chat_template_of, embedding_of
from longspan.model.stage_metadata import LayerMetadata


class PackageSource(ModelSource):
    """A layer package, of which only the artifacts of the asked stages need to be there."""

    def __init__(self, directory: Path, *, progress: Progress | None = None) -> None:
        """Read package.json and metadata.gguf.

        Raises PackageError when one is missing or damaged, ArchitectureError when the architecture cannot be split.
        """
        super().__init__(progress)
        self._directory = directory
        self.manifest = read_manifest(directory)
        self.architecture = find_architecture(self.manifest.architecture)
        self._metadata = self._open(self.manifest.artifact("metadata"))
        if self._metadata.architecture != self.manifest.architecture:
            raise PackageError(
                f"{self._metadata.path} is of the architecture {self._metadata.architecture!r}, package.json says "
                f"{self.manifest.architecture!r}: these files belong to different packages. Copy the package again."
            )
        self._layer_metadata = LayerMetadata(
            self.architecture, self._metadata.metadata, describe.blocks_of(self._metadata)
        )
        if self._layer_metadata.layers != self.manifest.layer_count:
            raise PackageError(
                f"{self._metadata.path} is of a model with {self._layer_metadata.layers} layers, package.json says "
                f"{self.manifest.layer_count}: these files belong to different packages. Copy the package again."
            )

    def _open(self, artifact: Artifact) -> GgufFile:
        """The artifact's header, after its contents were checked."""
        check_artifacts(self._directory, [artifact], self._progress)
        path = artifact_path(self._directory, artifact)
        file = read_gguf(path)
        if len(file.tensors) != artifact.tensor_count:
            raise PackageError(
                f"{path} holds {len(file.tensors)} tensors, package.json says {artifact.tensor_count}. "
                "Split the model again."
            )
        return file

    @property
    def _layers(self) -> LayerMetadata:
        return self._layer_metadata

    @functools.cached_property
    def description(self) -> ModelDescription:
        known = self.manifest
        return ModelDescription(
            model_id=known.model_id,
            name=known.name,
            architecture=known.architecture,
            layers=known.layer_count,
            width=known.width,
            vocabulary=known.vocabulary,
            context_length=known.context_length,
            quantisation=known.quantisation,
            embedding_scale=describe.embedding_scale_of(self.architecture, self._metadata, known.width),
            activation_dtypes=self._layer_metadata.activation_dtypes,
            tied_embeddings=known.tied_embeddings,
            cut_multiple=self.architecture.cut_multiple,
        )

    @property
    def path(self) -> Path:
        return self._directory

    @property
    def size(self) -> int:
        return sum(artifact.bytes for artifact in self.manifest.artifacts)

    @property
    def digest(self) -> str:
        return self.manifest.digest

    @property
    def chat_template(self) -> str | None:
        return chat_template_of(self._metadata)

    def vocabulary_file(self) -> Path:
        return self._metadata.path

    def token_embedding(self, library: str | None = None) -> TokenEmbedding:
        file = self._open(self.manifest.artifact("embedding"))
        return TokenEmbedding(embedding_of(file), self.description.embedding_scale, library)

    def mtp_parts(self) -> StageParts | None:
        if self.manifest.mtp is None:
            return None
        shared = [self.manifest.artifact(role) for role in ("metadata", "output")]
        return self._gathered([*shared, *self.manifest.needed_to_draft()])

    def _parts(self, start: int, end: int) -> StageParts:
        return self._gathered(self.manifest.needed(start, end))

    def _gathered(self, needed: Sequence[Artifact]) -> StageParts:
        check_artifacts(self._directory, needed, self._progress)
        tensors: dict[str, Tensor] = {}
        for artifact in needed:
            tensors.update(self._open(artifact).tensors)
        known = self.manifest
        return StageParts(
            architecture=self.architecture,
            metadata=self._layer_metadata,
            tensors=tensors,
            head=known.output_tensors,
            width=known.width,
            vocabulary=known.vocabulary,
        )
