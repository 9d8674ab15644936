"""llama.cpp's own way to split a model: `llama-server` that offloads layers to an `rpc-server` behind a slow
link."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import msgspec

from longspan.bench.link_emulator import delayed_link
from longspan.errors import RuntimeUnavailableError, UsageError

START_SECONDS = 180.0


class RpcOptions(msgspec.Struct, frozen=True):
    """rpc_server: the binary; `llama-server` of the same build lies beside it. path: a GGUF file. offloaded: layers
    that the far side holds. slots: requests at once. cells: positions of one slot. delay_ms: one way."""

    rpc_server: Path
    path: Path
    offloaded: int
    threads: int
    slots: int
    cells: int
    delay_ms: float

    @property
    def llama_server(self) -> Path:
        """The server that asks the other one."""
        return self.rpc_server.with_name("llama-server")


@contextlib.asynccontextmanager
async def rpc_peer(options: RpcOptions) -> AsyncIterator[str]:
    """Both processes with a delayed link between them; gives the server's URL.

    Raises UsageError when a binary is missing, RuntimeUnavailableError with what it said when one ends early.
    """
    for binary in (options.rpc_server, options.llama_server):
        if not binary.is_file():
            raise UsageError(f"there is no {binary}; the RPC peer needs rpc-server and llama-server side by side")
    far, near = _free_port(), _free_port()
    async with contextlib.AsyncExitStack() as stack:
        rpc = await stack.enter_async_context(
            _running(
                options.rpc_server, "--host", "127.0.0.1", "--port", str(far), "--threads", str(options.threads)
            )
        )
        await _listening(far, rpc)
        link = await stack.enter_async_context(delayed_link("127.0.0.1", far, options.delay_ms))
        server = await stack.enter_async_context(
            _running(
                options.llama_server,
                *("--model", str(options.path), "--rpc", f"127.0.0.1:{link}"),
                *("--n-gpu-layers", str(options.offloaded), "--threads", str(options.threads)),
                *("--parallel", str(options.slots), "--ctx-size", str(options.slots * options.cells)),
                *("--host", "127.0.0.1", "--port", str(near)),
            )
        )
        url = f"http://127.0.0.1:{near}"
        await _healthy(url, server)
        yield url


@contextlib.asynccontextmanager
async def _running(binary: Path, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        str(binary), *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 10.0)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _listening(port: int, process: asyncio.subprocess.Process) -> None:
    for _ in _turns(process):
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.1)


async def _healthy(url: str, process: asyncio.subprocess.Process) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=5.0) as client:
        for _ in _turns(process):
            with contextlib.suppress(httpx.HTTPError):
                if (await client.get("/health")).status_code == 200:
                    return
            await asyncio.sleep(0.2)


def _turns(process: asyncio.subprocess.Process) -> Iterator[None]:
    """Turns without end, until the process has ended or took too long: then RuntimeUnavailableError."""
    until = time.monotonic() + START_SECONDS
    while process.returncode is None and time.monotonic() < until:
        yield
    ended = "did not come up" if process.returncode is None else f"ended with exit code {process.returncode}"
    raise RuntimeUnavailableError(f"a process of the RPC peer {ended}; see above what it said")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
