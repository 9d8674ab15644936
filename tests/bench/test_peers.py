"""Peers: the emulated link, a run beside llama.cpp's server, and the plumbing of the RPC peer."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import pytest

from longspan.bench.link_emulator import delayed_link
from longspan.bench.peer_kinds import PeerOrder, PeerPrograms, peer_server, why_absent
from longspan.bench.peers import PeersPlan
from longspan.bench.rpc_peer import RpcOptions, rpc_peer
from longspan.cli.main import main
from longspan.errors import RuntimeUnavailableError, UsageError
from longspan.model.storage import CACHE_VARIABLE
from tests.tiny_models import write_tiny_model
from tests.whole_model import WholeModel


async def test_a_delayed_link_is_late_by_its_delay_each_way_and_keeps_every_byte() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, delayed_link("127.0.0.1", server.sockets[0].getsockname()[1], 40.0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        started = time.perf_counter()
        writer.write(b"ping")
        assert await reader.readexactly(4) == b"ping"
        assert 0.080 <= time.perf_counter() - started < 2.0
        payload = bytes(range(256)) * 4096
        writer.write(payload)
        writer.write_eof()
        assert await reader.read(-1) == payload
        writer.close()


async def test_a_link_to_nowhere_is_an_end() -> None:
    async with delayed_link("127.0.0.1", 9, 0.0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read(1) == b""
        writer.close()


def test_a_run_beside_llama_cpps_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    model = write_tiny_model(tmp_path / "tiny.gguf", "llama", weight_type="Q8_0", context=1024)
    arguments = ["bench", "peers", str(model), "--texts", "copy", "--concurrency", "2", "--tokens", "6"]
    arguments += ["--rounds", "1", "--threads", "1", "--transformers-python", without_packages(tmp_path)]
    assert main([*arguments, "--json"]) == 0
    row, *absent = json.loads(capsys.readouterr().out)["rows"]
    assert (row["peer"], row["text"], row["concurrency"], row["delay_ms"]) == ("llama.cpp", "copy", 2, 0.0)
    assert row["tokens_per_second"] > 0 and row["peer_tokens_per_second"] > 0
    assert row["ratio"] > 0 and row["noise"] >= 0
    assert [row["peer"] for row in absent] == ["llama.cpp-rpc", "transformers"]
    assert "--rpc-server" in absent[0]["absent"] and "No module named 'accelerate'" in absent[1]["absent"]
    assert all(row["ratio"] is None and row["concurrency"] is None for row in absent)


def without_packages(folder: Path) -> str:
    """An interpreter that has the standard library only."""
    program = folder / "bare-python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return str(program)


def test_peers_that_are_not_here_are_told_in_the_table_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    model = write_tiny_model(tmp_path / "tiny.gguf", "llama", weight_type="Q8_0", context=1024)
    arguments = ["bench", "peers", str(model), "--texts", "copy", "--peers", "llama.cpp-rpc"]
    assert main(arguments) == 0
    assert "llama.cpp-rpc: not measured, no rpc-server is given" in capsys.readouterr().out


PYTHON_WITH_TRANSFORMERS = os.environ.get("LONGSPAN_TRANSFORMERS_PYTHON", sys.executable)
"""An interpreter with the extra `peers`."""


def test_a_run_beside_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = asyncio.run(why_absent("transformers", PeerPrograms(python=PYTHON_WITH_TRANSFORMERS)))
    if absent is not None:
        pytest.skip(absent)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    model = write_tiny_model(tmp_path / "tiny.gguf", "llama", weight_type="Q8_0", context=1024)
    arguments = ["bench", "peers", str(model), "--texts", "copy", "--concurrency", "2", "--tokens", "6"]
    arguments += ["--rounds", "1", "--threads", "1", "--peers", "transformers"]
    assert main([*arguments, "--transformers-python", PYTHON_WITH_TRANSFORMERS, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["peer"] == "transformers" and row["peer_tokens_per_second"] > 0 and row["ratio"] > 0


async def test_transformers_continues_as_the_model_does(tmp_path: Path) -> None:
    """Two prompts of different lengths in one batch: each gets what greedy decoding of the whole model gives."""
    absent = await why_absent("transformers", PeerPrograms(python=PYTHON_WITH_TRANSFORMERS))
    if absent is not None:
        pytest.skip(absent)
    import httpx

    model = write_tiny_model(tmp_path / "tiny.gguf", "llama", weight_type="F32")
    prompts = [list(range(5, 30)), list(range(40, 49))]
    order = PeerOrder("transformers", model, 4, 1, 2, 64, 0.0)
    programs = PeerPrograms(python=PYTHON_WITH_TRANSFORMERS)
    async with peer_server(order, programs) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        bodies = [{"prompt": prompt, "max_tokens": 8} for prompt in prompts]
        found = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))
    answers = [answer.json()["choices"][0]["token_ids"] for answer in found]
    with WholeModel(model, precise=True) as whole:
        assert answers == [whole.greedy(prompt, 8) for prompt in prompts]


PROGRAM = """\
#!{python}
import http.server, sys
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = " ".join(sys.argv[1:]).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
http.server.HTTPServer((arguments["--host"], int(arguments["--port"])), Handler).serve_forever()
"""


def options(folder: Path) -> RpcOptions:
    return RpcOptions(folder / "rpc-server", folder / "model.gguf", 3, 1, 2, 128, 30.0)


async def test_the_rpc_peer_reaches_the_far_side_through_the_delayed_link(tmp_path: Path) -> None:
    """Both programs are stand-ins that answer HTTP with their arguments; llama.cpp's are not part of the tests."""
    import httpx

    for name in ("rpc-server", "llama-server"):
        program = tmp_path / name
        program.write_text(PROGRAM.format(python=sys.executable), encoding="utf-8")
        program.chmod(0o755)
    async with rpc_peer(options(tmp_path)) as url, httpx.AsyncClient(timeout=10) as client:
        told = (await client.get(url)).text
        assert "--n-gpu-layers 3" in told and "--ctx-size 256" in told
        link = told.partition("--rpc ")[2].partition(" ")[0]
        started = time.perf_counter()
        assert "--threads 1" in (await client.get(f"http://{link}/")).text
        assert time.perf_counter() - started >= 0.060


async def test_an_rpc_peer_that_cannot_be_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="side by side"):
        async with rpc_peer(options(tmp_path)):
            raise AssertionError("it cannot run")
    for name in ("rpc-server", "llama-server"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(RuntimeUnavailableError, match="exit code 3"):
        async with rpc_peer(options(tmp_path)):
            raise AssertionError("it cannot run")


def test_more_requests_than_prompts_are_refused() -> None:
    with pytest.raises(UsageError, match="at most"):
        PeersPlan(("copy",), (9,), (), 1, 1, 1)
