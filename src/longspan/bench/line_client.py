"""A helper process that takes an order a line, as JSON on standard input, and answers each with a line."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import TypeVar

import msgspec

from longspan.errors import LongspanError

LONGEST_LINE = 1 << 20

Answer = TypeVar("Answer")


class LineClient:
    """The process, once it runs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, order: msgspec.Struct, answer: type[Answer]) -> Answer:
        """Have an order carried out. Raises LongspanError when the process ended instead."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise LongspanError(f"the client ended with exit code {await self._process.wait()}; see above")
        return msgspec.json.decode(line, type=answer)


@contextlib.asynccontextmanager
async def line_client(module: str) -> AsyncIterator[LineClient]:
    """Run `python -m MODULE` until the block ends; then its input ends, and it is expected to end too."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LONGEST_LINE,
    )
    try:
        yield LineClient(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
