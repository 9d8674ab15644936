"""The API bench measures what it says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from longspan.bench.api import bench_api
from longspan.bench.stream_client import StreamOrder, stream_all
from longspan.model.storage import CACHE_VARIABLE
from tests.tiny_models import write_tiny_model


async def test_both_arms_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, "llama", weight_type="Q8_0")
    reports: list[str] = []
    figures = await bench_api(str(path), streams=(1, 3), tokens=8, rounds=1, threads=1, report=reports.append)
    assert [row.streams for row in figures.rows] == [1, 3]
    for row in figures.rows:
        # Times hang on the machine; that they are of the same order on both ways does not.
        assert 0 < row.token_ms < 1000
        assert row.direct_first_token_ms > 0
        assert 0 < row.added_cpu_ms < 100
        assert row.added_ms == pytest.approx(row.token_ms - row.direct_token_ms)
        assert 0.01 < row.throughput_ratio < 100
    assert reports[-1] == "3 streams: round 1 of 1"


async def test_a_stream_that_breaks_off_is_no_measurement() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\ndata: {}\n\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(RuntimeError, match="ended the stream"):
            await stream_all(StreamOrder("127.0.0.1", port, ((5,),), 4))
