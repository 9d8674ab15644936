"""Layers that a stage gets from its coordinator, for stages that were started without a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from longspan.errors import RingError
from longspan.llamacpp.library import load_library
from longspan.model.mtp_head import find_head
from longspan.model.package_source import PackageSource
from longspan.ring.artifact_fetch import ArtifactFetch
from longspan.ring.artifact_store import ArtifactStore
from longspan.ring.llama_loader import LlamaLoader
from longspan.ring.loader import StageLoader
from longspan.ring.messages import Assignment
from longspan.ring.tcp import TcpLink
from longspan.runtime.base import StageRuntime
from longspan.runtime.llama.memory import free_bytes


class FetchedLoader(StageLoader):
    """A `StageLoader` of whatever model the coordinator serves. Its figures are those of the newest one."""

    def __init__(
        self, *, threads: int | None = None, library: str | None = None, mtp_head: Path | bool = True
    ) -> None:
        """The arguments are those of `LlamaLoader`."""
        self._threads = threads
        self._library = library
        self._mtp_head = mtp_head
        self._loader: LlamaLoader | None = None
        self.digest = ""
        self.layers = 0
        self.width = 0
        self.dtypes: tuple[str, ...] = ()

    def holds(self, digest: str) -> bool:
        """See `StageLoader.holds`: every model can be got."""
        return True

    async def prepare(self, link: TcpLink, digest: str, assignment: Assignment) -> None:
        """See `StageLoader.prepare`."""
        store = ArtifactStore(digest)
        fetch = ArtifactFetch(link, store)
        manifest = await fetch.manifest()
        start, end = assignment.start, assignment.end
        if not 0 <= start < end <= manifest.layer_count:
            raise RingError(f"layers {start}-{end} cannot be got, this model has layers 0-{manifest.layer_count}")
        await fetch.artifacts([manifest.artifact("metadata")], composed=0)
        source = PackageSource(store.directory)
        needed = manifest.needed(start, end)
        composed = sum(artifact.bytes for artifact in needed)
        if end == manifest.layer_count and self._mtp_head:
            named = isinstance(self._mtp_head, Path)
            drafts = named or manifest.mtp is not None or find_head(source) is not None
            needed += [part for part in manifest.needed_to_draft() if drafts and part not in needed]
        await fetch.artifacts(needed, composed=composed)
        self._loader = loader = LlamaLoader(
            source, threads=self._threads, library=self._library, mtp_head=self._mtp_head
        )
        self.digest, self.layers, self.width, self.dtypes = (
            *(loader.digest, loader.layers, loader.width),
            loader.dtypes,
        )

    def load(self, assignment: Assignment, report: Callable[[str], None]) -> StageRuntime:
        """See `StageLoader.load`."""
        if self._loader is None:
            raise RingError("this stage has no model yet: a coordinator gives it the layers when its ring forms")
        return self._loader.load(assignment, report)

    def free_bytes(self) -> int:
        """See `StageLoader.free_bytes`."""
        return free_bytes(load_library(self._library))
