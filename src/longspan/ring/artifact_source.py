"""The coordinator's side of artifacts: sends stages the files of their layers."""

from __future__ import annotations

import asyncio
from pathlib import Path

from longspan.errors import ModelError, ProtocolError
from longspan.model.package import MANIFEST, Manifest, artifact_path, check_artifacts, is_package, read_manifest
from longspan.model.package_source import PackageSource
from longspan.model.progress import Progress, SilentProgress
from longspan.model.source import GgufSource, ModelSource
from longspan.model.split import split_model
from longspan.model.storage import cache_directory, exclusive, explained
from longspan.ring.artifact_messages import CHUNK, CHUNK_BYTES, Chunk, Want
from longspan.ring.link import Link


class ArtifactSource:
    """A model's layer package. A model file is split into one, in the cache, when the first stage asks."""

    def __init__(self, source: ModelSource, progress: Progress | None = None) -> None:
        self._source = source
        self._progress = progress or SilentProgress()
        self._package: tuple[Path, Manifest] | None = None
        self._opening = asyncio.Lock()

    async def send(self, link: Link, want: Want, start: int, end: int) -> None:
        """Send what the stage [start, end) asks for, unless it is not of its layers.

        Raises ProtocolError when it asks for anything else, RingError when the link is lost, ModelError when the
        files cannot be read.
        """
        async with self._opening:
            if self._package is None:
                self._package = await asyncio.to_thread(self._open)
        directory, manifest = self._package
        path, total = await asyncio.to_thread(self._find, directory, manifest, want, start, end)
        if want.offset > total:
            raise ProtocolError(f"{want.name} is asked for from byte {want.offset} on, it has {total}")
        try:
            with path.open("rb") as file:
                file.seek(want.offset)
                offset = want.offset
                while True:
                    data = await asyncio.to_thread(file.read, min(CHUNK_BYTES, total - offset))
                    if not data and offset < total:
                        raise ModelError(f"{path} became shorter while it was sent")
                    await link.send(CHUNK.encode(Chunk(offset, total), data))
                    offset += len(data)
                    if offset >= total:
                        return
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror or error}") from None

    def _open(self) -> tuple[Path, Manifest]:
        if isinstance(self._source, PackageSource):
            return self._source.path, self._source.manifest
        assert isinstance(self._source, GgufSource)
        directory = cache_directory() / "packages" / self._source.digest
        with explained(directory), exclusive(directory):
            if not is_package(directory):
                split_model(self._source, directory, requantise=None, progress=self._progress)
        return directory, read_manifest(directory)

    def _find(self, directory: Path, manifest: Manifest, want: Want, start: int, end: int) -> tuple[Path, int]:
        """The file, and its size. Names are looked up among the stage's own: no path leaves the package."""
        if want.name == MANIFEST:
            path = directory / MANIFEST
            return path, path.stat().st_size
        own = manifest.needed(start, end) + (manifest.needed_to_draft() if end == manifest.layer_count else [])
        for artifact in own:
            if artifact.path == want.name:
                check_artifacts(directory, [artifact], SilentProgress())
                return artifact_path(directory, artifact), artifact.bytes
        raise ProtocolError(
            f"the stage of the layers {start}-{end} asks for {want.name!r:.80}, which is none of its"
        )
