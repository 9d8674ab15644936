"""The peers that there are, what keeps one from running here, and how each is started."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import msgspec

from longspan.bench import transformers_peer
from longspan.bench.child_server import child_server
from longspan.bench.peer_server import PeerOptions
from longspan.bench.rpc_peer import RpcOptions, rpc_peer
from longspan.openmp import VARIABLES

Peer = Literal["llama.cpp", "llama.cpp-rpc", "transformers"]
PEERS: tuple[Peer, ...] = ("llama.cpp", "llama.cpp-rpc", "transformers")


class PeerPrograms(msgspec.Struct, frozen=True):
    """What does not come with Longspan. rpc_server: a binary, `llama-server` of the same build beside it. python:
    an interpreter with torch, transformers, accelerate and gguf."""

    rpc_server: Path | None = None
    python: str = sys.executable


class PeerOrder(msgspec.Struct, frozen=True):
    """A server to start. path: a GGUF file. layers: of the model. slots: requests at once. cells: positions of one
    slot. delay_ms: one way, of a split one."""

    peer: Peer
    path: Path
    layers: int
    threads: int
    slots: int
    cells: int
    delay_ms: float


async def why_absent(peer: Peer, programs: PeerPrograms) -> str | None:
    """A sentence about what is missing here; None when the peer can run."""
    if peer == "llama.cpp-rpc" and programs.rpc_server is None:
        return "no rpc-server is given (--rpc-server)"
    if peer == "transformers":
        process = await asyncio.create_subprocess_exec(
            *(programs.python, "-I", "-c", "import accelerate, gguf, torch, transformers"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await process.communicate()
        if process.returncode:
            last = (errors.decode("utf-8", "replace").strip().splitlines() or ["no reason is given"])[-1]
            return f"{Path(programs.python).name} has no transformers with torch, accelerate and gguf ({last})"
    return None


@contextlib.asynccontextmanager
async def peer_server(order: PeerOrder, programs: PeerPrograms) -> AsyncIterator[str]:
    """Run a peer; gives its URL. Its threads wait as its builder chose.

    Raises LongspanError when it does not come up.
    """
    async with contextlib.AsyncExitStack() as stack:
        if order.peer == "llama.cpp-rpc":
            assert programs.rpc_server is not None
            options = RpcOptions(
                programs.rpc_server,
                order.path,
                order.layers // 2,
                order.threads,
                order.slots,
                order.cells,
                order.delay_ms,
            )
            yield await stack.enter_async_context(rpc_peer(options))
            return
        asked = msgspec.json.encode(PeerOptions(str(order.path), order.threads, order.slots, order.cells)).decode()
        if order.peer == "llama.cpp":
            arguments, python = ["-m", "longspan.bench.peer_server", asked], sys.executable
        else:
            # By its path and isolated: that interpreter need not have Longspan, and shall not see our modules.
            arguments, python = ["-I", str(transformers_peer.__file__), asked], programs.python
        yield await stack.enter_async_context(child_server(arguments, without=VARIABLES, python=python))
