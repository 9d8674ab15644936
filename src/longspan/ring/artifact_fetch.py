"""A stage gets the files of its layers from its coordinator."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from longspan.errors import PackageError, ProtocolError, RingError
from longspan.model.package import MANIFEST, Artifact, Manifest
from longspan.ring.artifact_messages import CHUNK, CHUNK_BYTES, WANT, Want
from longspan.ring.artifact_store import MOST_MANIFEST_BYTES, ArtifactStore, PartialFile
from longspan.ring.messages import Progress, encode
from longspan.ring.tcp import TcpLink

SILENCE_SECONDS = 300.0
"""Longest wait for the next bytes: before the first, a coordinator may have to split its model into files."""

REPORT_SECONDS = 0.5
MOST_TRIES = 2
"""How often a file is got whose contents are wrong."""

_MIB = 1 << 20


class ArtifactFetch:
    """One coordinator's link, as long as files come over it."""

    def __init__(self, link: TcpLink, store: ArtifactStore) -> None:
        self._link = link
        self._store = store
        self._link.open_payloads(CHUNK_BYTES)

    async def manifest(self) -> Manifest:
        """What is in the package: known already, or asked for."""
        known = await asyncio.to_thread(self._store.manifest)
        if known is not None:
            return known
        data = bytearray()
        await self._link.send(WANT.encode(Want(MANIFEST)))
        while True:
            chunk, total = await self._chunk(len(data))
            if total > MOST_MANIFEST_BYTES:
                raise PackageError(
                    f"a manifest of {total} bytes is announced, at most {MOST_MANIFEST_BYTES} are read"
                )
            data += chunk
            if len(data) >= total:
                return await asyncio.to_thread(self._store.keep_manifest, bytes(data))

    async def artifacts(self, artifacts: list[Artifact], *, composed: int) -> None:
        """Get those of the artifacts that are missing. composed: bytes of the file that is made of them.

        Raises ModelError when the disk has no room, PackageError when contents stay wrong, RingError when the
        coordinator goes; what came until then is kept, and the next call goes on behind it.
        """
        missing = await asyncio.to_thread(self._store.missing, artifacts)
        if not missing:
            return
        await asyncio.to_thread(self._store.check_space, missing, composed)
        meter = _Meter(sum(artifact.bytes for artifact in missing), self._tell)
        for artifact in missing:
            for attempt in range(1, MOST_TRIES + 1):
                try:
                    await self._get(artifact, meter)
                    break
                except PackageError:
                    if attempt == MOST_TRIES:
                        raise
        meter.report()

    async def _get(self, artifact: Artifact, meter: _Meter) -> None:
        partial = await asyncio.to_thread(self._store.open, artifact)
        with partial:
            meter.skip(partial.offset)
            if partial.offset < artifact.bytes:
                await self._receive(artifact, partial, meter)
            await asyncio.to_thread(partial.finish)

    async def _receive(self, artifact: Artifact, partial: PartialFile, meter: _Meter) -> None:
        await self._link.send(WANT.encode(Want(artifact.path, partial.offset)))
        while partial.offset < artifact.bytes:
            data, total = await self._chunk(partial.offset)
            if total != artifact.bytes or not data:
                raise ProtocolError(f"{artifact.path} comes with {total} bytes, {artifact.bytes} were expected")
            await asyncio.to_thread(partial.write, data)
            meter.count(len(data))

    async def _chunk(self, offset: int) -> tuple[bytes | memoryview, int]:
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                frame = await self._link.receive()
        except TimeoutError:
            raise RingError(f"the coordinator has sent nothing for {SILENCE_SECONDS:g} s") from None
        chunk = CHUNK.decode(frame)
        if chunk.offset != offset:
            raise ProtocolError(f"bytes from {chunk.offset} on came, those from {offset} on were asked for")
        return frame.payload, chunk.total

    def _tell(self, text: str) -> None:
        self._link.send_at_once(encode(Progress(text)))


class _Meter:
    """How much came, and how fast."""

    def __init__(self, total: int, tell: Callable[[str], None]) -> None:
        self._total = total
        self._tell = tell
        self._there = 0
        self._came = 0
        self._started = time.monotonic()
        self._reported = self._started

    def skip(self, size: int) -> None:
        """So much was there already."""
        self._there += size
        if size:
            self.report()

    def count(self, size: int) -> None:
        """So much came."""
        self._there += size
        self._came += size
        if time.monotonic() - self._reported >= REPORT_SECONDS:
            self.report()

    def report(self) -> None:
        """Say how much there is."""
        self._reported = time.monotonic()
        rate = self._came / max(1e-6, self._reported - self._started)
        self._tell(
            f"fetching layers: {self._there / _MIB:.1f} of {self._total / _MIB:.1f} MiB, {rate / _MIB:.1f} MiB/s"
        )
