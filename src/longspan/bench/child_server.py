"""A server in a child process that says `listening on URL` when it can answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Collection, Mapping, Sequence

from longspan.errors import RingError

START_SECONDS = 180.0
STOP_SECONDS = 10.0
_PREFIX = "listening on "


@contextlib.asynccontextmanager
async def child_server(
    arguments: Sequence[str],
    *,
    without: Collection[str] = (),
    extra: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> AsyncIterator[str]:
    """Run `python ARGUMENTS` and give the URL it announces; ends the process afterwards.

    without: variables of the environment that it does not get. extra: variables that it gets besides.

    Raises RingError with what it said when it does not come up.
    """
    process = await asyncio.create_subprocess_exec(
        python,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name not in without} | dict(extra or {}),
    )
    assert process.stdout is not None and process.stderr is not None and process.stdin is not None
    errors = asyncio.create_task(_drain(process.stderr))
    try:
        yield await asyncio.wait_for(_announced(process.stdout, errors), START_SECONDS)
    finally:
        process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
        await errors


async def _announced(output: asyncio.StreamReader, errors: asyncio.Task[bytes]) -> str:
    while line := await output.readline():
        text = line.decode("utf-8", "replace").strip()
        if text.startswith(_PREFIX):
            return text.removeprefix(_PREFIX)
    raise RingError(f"the server did not start: {(await errors).decode('utf-8', 'replace').strip()}")


async def _drain(stream: asyncio.StreamReader) -> bytes:
    """Read to the end and keep the last kilobytes, so that the child never waits for us."""
    kept = b""
    while part := await stream.read(65536):
        kept = (kept + part)[-4096:]
    return kept
