"""Files of layer packages that a stage got from its coordinator: kept in the cache, resumed where they ended."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import BinaryIO, Self

from longspan.errors import PackageError
from longspan.model.digest import remember_digest
from longspan.model.package import MANIFEST, Artifact, Manifest, artifact_path, read_manifest
from longspan.model.storage import atomic_file, cache_directory, check_space, explained

MOST_MANIFEST_BYTES = 16 << 20
_DIGEST = re.compile(r"^[0-9a-f]{64}$")
_BLOCK = 1 << 20


class ArtifactStore:
    """The layer package of one digest, of which only some files are there."""

    def __init__(self, digest: str) -> None:
        """Raises PackageError for a digest that is none: it becomes the name of a directory."""
        if not _DIGEST.fullmatch(digest):
            raise PackageError("the coordinator names a model by something that is no digest")
        self.directory = cache_directory() / "fetched" / digest
        self._digest = digest

    def manifest(self) -> Manifest | None:
        """What is in the package, if that is known already."""
        if not (self.directory / MANIFEST).is_file():
            return None
        return self._checked(read_manifest(self.directory))

    def keep_manifest(self, data: bytes) -> Manifest:
        """Note what is in the package. Raises PackageError when it is of another model."""
        with explained(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            # Read before it gets its name: what is damaged or of another model does not stay.
            trial = self.directory / ".incoming"
            trial.mkdir(exist_ok=True)
            try:
                (trial / MANIFEST).write_bytes(data)
                manifest = self._checked(read_manifest(trial))
            finally:
                (trial / MANIFEST).unlink(missing_ok=True)
                trial.rmdir()
            with atomic_file(self.directory / MANIFEST) as file:
                file.write(data)
        return manifest

    def _checked(self, manifest: Manifest) -> Manifest:
        if manifest.digest != self._digest:
            raise PackageError(
                f"the package is of the model {manifest.digest[:12]}, that of {self._digest[:12]} was expected"
            )
        return manifest

    def missing(self, artifacts: list[Artifact]) -> list[Artifact]:
        """Those that are not there whole."""
        return [artifact for artifact in artifacts if not self._is_there(artifact)]

    def _is_there(self, artifact: Artifact) -> bool:
        path = artifact_path(self.directory, artifact)
        return path.is_file() and path.stat().st_size == artifact.bytes

    def check_space(self, artifacts: list[Artifact], composed: int) -> None:
        """Raise ModelError when the missing files and a stage file of `composed` bytes have no room on the disk."""
        self.directory.mkdir(parents=True, exist_ok=True)
        held = sum(
            partial.stat().st_size for artifact in artifacts if (partial := self._partial(artifact)).is_file()
        )
        check_space(self.directory, sum(artifact.bytes for artifact in artifacts) - held + composed)

    def _partial(self, artifact: Artifact) -> Path:
        path = artifact_path(self.directory, artifact)
        return path.with_name(f".{path.name}.partial")

    def open(self, artifact: Artifact) -> PartialFile:
        """Where the artifact's bytes go, behind those that came before."""
        target = artifact_path(self.directory, artifact)
        target.parent.mkdir(parents=True, exist_ok=True)
        return PartialFile(artifact, self._partial(artifact), target)


class PartialFile:
    """A file that arrives. offset: bytes that are there. Use it with `with`; `finish` gives it its name."""

    def __init__(self, artifact: Artifact, partial: Path, target: Path) -> None:
        self._artifact = artifact
        self._partial = partial
        self._target = target
        self._hash = hashlib.sha256()
        self._file: BinaryIO = partial.open("a+b")
        self.offset = 0
        try:
            self._read_what_is_there()
        except BaseException:
            self._file.close()
            raise

    def _read_what_is_there(self) -> None:
        if self._partial.stat().st_size > self._artifact.bytes:
            self._file.truncate(0)
        self._file.seek(0)
        while data := self._file.read(_BLOCK):
            self._hash.update(data)
            self.offset += len(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def write(self, data: bytes | memoryview) -> None:
        """Add bytes. Raises PackageError when there are more than the file has."""
        if self.offset + len(data) > self._artifact.bytes:
            raise PackageError(
                f"{self._artifact.path} is longer than the {self._artifact.bytes} bytes it should have"
            )
        with explained(self._partial):
            self._file.write(data)
        self._hash.update(data)
        self.offset += len(data)

    def finish(self) -> None:
        """Give the whole file its name. Raises PackageError when its sha256 is wrong; then it is gone."""
        if self._hash.hexdigest() != self._artifact.sha256:
            self._partial.unlink(missing_ok=True)
            raise PackageError(
                f"{self._artifact.path} came with other contents than its sha256 says; it was thrown away"
            )
        with explained(self._partial):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._partial.replace(self._target)
        remember_digest([self._target], self._artifact.sha256)
