"""Stages without a model get the files of their layers, and only those, from the coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from longspan.errors import ModelError, PackageError, ProtocolError, RingError
from longspan.model import storage
from longspan.model.package import Artifact
from longspan.model.package_source import PackageSource
from longspan.model.progress import SilentProgress
from longspan.model.source import GgufSource
from longspan.model.split import split_model
from longspan.model.storage import CACHE_VARIABLE
from longspan.ring import artifact_source
from longspan.ring.artifact_messages import CHUNK, Want
from longspan.ring.artifact_source import ArtifactSource
from longspan.ring.artifact_store import ArtifactStore
from longspan.ring.driver import RingDriver
from longspan.ring.fetched_loader import FetchedLoader
from longspan.ring.frame import Frame
from longspan.ring.launcher import LocalLauncher, StageHandle
from longspan.ring.link import Link
from longspan.ring.llama_loader import LlamaLoader
from longspan.ring.ring_plan import RingPlan, StagePlace
from longspan.ring.stage_process import StageOptions
from longspan.ring.stage_server import StageServer
from longspan.schedule.span import Iteration, IterationResult, Phase, Span
from tests.tiny_models import write_tiny_model
from tests.whole_model import WholeModel

PROMPT = (40, 41, 42, 80, 90, 7, 200, 3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layers of some hundred KB, so that each takes several chunks."""
    path = tmp_path_factory.mktemp("artifacts") / "tiny.gguf"
    return write_tiny_model(path, "llama", width=256, weight_type="F16", tied=True)


@pytest.fixture
def source(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GgufSource:
    """The coordinator's model; its cache is its own."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "coordinator"))
    return GgufSource(model)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact_source, "CHUNK_BYTES", 32 << 10)


class WatchedSource(ArtifactSource):
    """Notes what is asked for, and lets a test into the way of the bytes."""

    def __init__(
        self, source: GgufSource, change: Callable[[int, Frame], Frame] = lambda sent, frame: frame
    ) -> None:
        super().__init__(source)
        self.wants: list[Want] = []
        self.sent = 0
        self._change = change

    async def send(self, link: Link, want: Want, start: int, end: int) -> None:
        self.wants.append(want)
        await super().send(_Watched(self, link), want, start, end)  # type: ignore[arg-type]

    async def pass_on(self, link: Link, frame: Frame) -> None:
        self.sent += len(frame.payload)
        await link.send(self._change(self.sent, frame))


class _Watched:
    def __init__(self, source: WatchedSource, link: Link) -> None:
        self._source = source
        self._link = link

    async def send(self, frame: Frame) -> None:
        await self._source.pass_on(self._link, frame)


@contextlib.asynccontextmanager
async def stage_process(cache: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StageHandle]:
    """A stage in a process of its own, without a model, whose cache is elsewhere."""
    before = os.environ[CACHE_VARIABLE]
    monkeypatch.setenv(CACHE_VARIABLE, str(cache))
    try:
        handle = await LocalLauncher().start(0, StageOptions(None, threads=1))
    finally:
        monkeypatch.setenv(CACHE_VARIABLE, before)
    try:
        yield handle
    finally:
        await handle.stop()


async def form(
    source: GgufSource, handles: list[StageHandle], artifacts: ArtifactSource | None, texts: list[str] | None = None
) -> int:
    """Form a ring with the first two layers here and the last two on the given stage; the next token."""
    places = (StagePlace(0, 0, 2, None, near=True), StagePlace(1, 2, 4, handles[0].address))
    found: asyncio.Future[IterationResult] = asyncio.get_running_loop().create_future()
    driver = RingDriver(
        RingPlan("ring", places, 2, 64, "float32", 0.0),
        LlamaLoader(source, threads=1),
        on_result=found.set_result,
        on_room=lambda: None,
        on_failure=lambda error: pytest.fail(str(error)),
        on_progress=(texts if texts is not None else []).append,
        artifacts=artifacts,
    )
    try:
        await driver.form()
        span = Span(1, 0, 0, 0, PROMPT, Phase.PREFILL, (len(PROMPT) - 1,))
        embeddings = source.token_embedding().rows(np.array(PROMPT, np.int32))
        driver.send(Iteration(0, (), (), (span,)), embeddings)
        return (await asyncio.wait_for(found, 20)).samples[0].token
    finally:
        await driver.close()


def fetched(cache: Path) -> set[str]:
    (folder,) = (cache / "fetched").iterdir()
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def stored(cache: Path) -> int:
    """Bytes of what was fetched."""
    (folder,) = (cache / "fetched").iterdir()
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


OWN = {"package.json", "metadata.gguf", "embedding.gguf", "output.gguf", "layers/0002.gguf", "layers/0003.gguf"}


async def test_a_process_in_another_cache_gets_its_layers_and_goes_on_where_it_broke_off(
    source: GgufSource, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, texts = tmp_path / "stage", list[str]()

    def cut(sent: int, frame: Frame) -> Frame:
        if sent > 900_000:
            raise RingError("the coordinator's network is gone")
        return frame

    async with stage_process(cache, monkeypatch) as handle:
        first = WatchedSource(source, cut)
        with pytest.raises(RingError, match="network is gone"):
            await form(source, [handle], first)
        assert handle.pid is not None
        os.kill(handle.pid, signal.SIGKILL)
    partial = [name for name in fetched(cache) if name.endswith(".partial")]
    assert len(partial) == 1
    held = stored(cache)
    async with stage_process(cache, monkeypatch) as handle:
        second = WatchedSource(source)
        token = await form(source, [handle], second, texts)
        assert fetched(cache) == OWN
        # What came before did not come again.
        assert second.wants[0].offset > 0
        assert partial[0].removesuffix(".partial").replace(".", "", 1) == second.wants[0].name
        assert not {want.name for want in second.wants[1:]} & {want.name for want in first.wants}
        assert held > 0 and held + second.sent < 1.02 * stored(cache)
        assert any("fetching layers" in text and "MiB/s" in text for text in texts)
        # And nothing comes when everything is there.
        third = WatchedSource(source)
        assert await form(source, [handle], third) == token
        assert third.wants == []
    with WholeModel(model) as whole:
        assert [token] == whole.greedy(PROMPT, 1)


@contextlib.asynccontextmanager
async def stage_here(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[StageHandle]]:
    """A stage without a model in this process; it shares the coordinator's cache, but not what it fetches."""
    server = StageServer(FetchedLoader(threads=1))
    await server.start("127.0.0.1", 0)
    try:
        yield [SimpleNamespace(address=("127.0.0.1", server.port))]  # type: ignore[list-item]
    finally:
        await server.close()


def spoilt(times: int) -> Callable[[int, Frame], Frame]:
    """Changes a bit of the first chunk of a layer, so many times."""
    left = times

    def change(_sent: int, frame: Frame) -> Frame:
        nonlocal left
        chunk = CHUNK.decode(frame)
        if left and chunk.offset == 0 and chunk.total > 500_000:
            left -= 1
            data = bytearray(frame.payload)
            data[-1] ^= 1
            return CHUNK.encode(chunk, bytes(data))
        return frame

    return change


async def test_wrong_contents_are_got_once_more(source: GgufSource, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage_here(monkeypatch) as stage:
        artifacts = WatchedSource(source, spoilt(1))
        await form(source, stage, artifacts)
        names = [want.name for want in artifacts.wants]
        assert len(names) == len(set(names)) + 1


async def test_contents_that_stay_wrong_are_refused(source: GgufSource, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage_here(monkeypatch) as stage:
        with pytest.raises(RingError, match=r"stage 1 .*refused: .* came with other contents than its sha256 says"):
            await form(source, stage, WatchedSource(source, spoilt(9)))


async def test_a_full_disk_is_said_before_anything_is_fetched(
    source: GgufSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts = WatchedSource(source)
    split_model(
        source, storage.cache_directory() / "packages" / source.digest, requantise=None, progress=SilentProgress()
    )
    source.stage_file(0, 2)
    async with stage_here(monkeypatch) as stage:
        monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=1000))
        with pytest.raises(RingError, match=r"stage 1 .*refused: .* has 0 MB free"):
            await form(source, stage, artifacts)
    assert [want.name for want in artifacts.wants] == ["package.json"]


async def test_a_coordinator_that_has_nothing_to_give_says_so(
    source: GgufSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage_here(monkeypatch) as stage:
        with pytest.raises(RingError, match=r"stage 1 .*it has no layers, and this coordinator has none to give"):
            await form(source, stage, None)


@pytest.mark.parametrize(
    ("name", "offset"),
    [("layers/0000.gguf", 0), ("../tiny.gguf", 0), ("/etc/passwd", 0), ("package.json", 1 << 40), ("", 0)],
)
async def test_only_its_own_files_are_sent(source: GgufSource, name: str, offset: int) -> None:
    class Nobody:
        async def send(self, frame: Frame) -> None:
            raise AssertionError("nothing is to be sent")

    with pytest.raises(ProtocolError):
        await ArtifactSource(source).send(Nobody(), Want(name, offset), 2, 4)  # type: ignore[arg-type]


async def test_a_package_is_sent_as_it_is(
    source: GgufSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split_model(source, tmp_path / "package", requantise=None, progress=SilentProgress())
    async with stage_here(monkeypatch) as stage:
        await form(source, stage, ArtifactSource(PackageSource(tmp_path / "package")))
    assert not (storage.cache_directory() / "packages").exists()


# ------------------------------------------------------------------------------------------------- the store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArtifactStore:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    return ArtifactStore("ab" * 32)


@pytest.mark.parametrize("digest", ["", "..", "ab" * 31, "AB" * 32, "ab" * 32 + "\n", "/" + "a" * 63])
def test_a_digest_is_no_path(digest: str) -> None:
    with pytest.raises(PackageError, match="no digest"):
        ArtifactStore(digest)


def test_a_manifest_of_another_model_does_not_stay(
    store: ArtifactStore, source: GgufSource, tmp_path: Path
) -> None:
    split_model(source, tmp_path / "package", requantise=None, progress=SilentProgress())
    with pytest.raises(PackageError, match="that of abababababab was expected"):
        store.keep_manifest((tmp_path / "package" / "package.json").read_bytes())
    with pytest.raises(PackageError, match="damaged"):
        store.keep_manifest(b"{")
    assert not store.directory.exists() or list(store.directory.iterdir()) == []


def test_bytes_beyond_the_end_are_not_written(store: ArtifactStore) -> None:
    artifact = Artifact("layers/0000.gguf", "layer", 0, 4, 1, "00" * 32)
    with store.open(artifact) as file:
        file.write(b"123")
        with pytest.raises(PackageError, match="longer than the 4 bytes"):
            file.write(b"45")
    with store.open(artifact) as file:
        assert file.offset == 3
        file.write(b"4")
        with pytest.raises(PackageError, match="other contents"):
            file.finish()
    assert store.missing([artifact]) == [artifact]
    with store.open(artifact) as file:
        assert file.offset == 0


def test_room_for_what_is_missing(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = Artifact("layers/0000.gguf", "layer", 0, 4_000_000, 1, "00" * 32)
    with store.open(artifact) as file:
        file.write(b"0" * 1_500_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=4_000_000))
    store.check_space([artifact], 1_000_000)
    with pytest.raises(ModelError, match="4 MB free"):
        store.check_space([artifact], 2_000_000)
