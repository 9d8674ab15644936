"""The viewers bench measures what it says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from longspan.bench.line_client import line_client
from longspan.bench.stream_client import StreamOrder, StreamTimes
from longspan.bench.viewer_client import FramesSeen, ViewerOrder, Viewers
from longspan.bench.viewers import ViewersPlan, bench_viewers
from longspan.errors import LongspanError
from longspan.model.storage import CACHE_VARIABLE
from tests.tiny_models import write_tiny_model


async def test_both_arms_are_measured_and_the_viewers_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, "llama", weight_type="Q8_0")
    figures = await bench_viewers(ViewersPlan(str(path), 3, 2, 16, 1, 1, 1), lambda _: None)
    assert figures.frames >= 2 * 3, "every viewer of both passes has its first frame"
    assert figures.tokens_per_second > 0 and figures.alone_tokens_per_second > 0
    assert 0.01 < figures.ratio < 100


async def serve_frames(count: int) -> asyncio.Server:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + count * b"data: {}\n\n")
        writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", 0)


async def test_frames_are_counted_for_those_who_looked() -> None:
    async with await serve_frames(5) as server:
        port = server.sockets[0].getsockname()[1]
        viewers = Viewers()
        assert await viewers.become(ViewerOrder("127.0.0.1", port, 2)) == FramesSeen(0)
        await asyncio.sleep(0.2)
        assert await viewers.become(ViewerOrder("127.0.0.1", port, 0)) == FramesSeen(10)
        assert await viewers.become(ViewerOrder("127.0.0.1", port, 0)) == FramesSeen(0)


async def test_a_dashboard_without_frames_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longspan.bench.viewer_client.FIRST_FRAME_SECONDS", 0.1)
    async with await serve_frames(0) as server:
        viewers = Viewers()
        with pytest.raises(RuntimeError, match="no frames"):
            await viewers.become(ViewerOrder("127.0.0.1", server.sockets[0].getsockname()[1], 1))
        await viewers.close()


async def test_a_client_that_ends_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    async with line_client("longspan.bench.stream_client") as client:
        with pytest.raises(LongspanError, match="exit code 1"):
            await client.ask(StreamOrder("127.0.0.1", 9, ((5,),), 4), StreamTimes)
    assert "ConnectionRefusedError" in capfd.readouterr().err
