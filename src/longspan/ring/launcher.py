"""Starts stages somewhere, watches them and stops them."""

from __future__ import annotations

import abc
import asyncio
import collections
import contextlib
import logging
import sys

import msgspec

from longspan.errors import RingError
from longspan.ring.membership import DismissedError
from longspan.ring.ring_plan import parse_address
from longspan.ring.stage_process import StageOptions

START_SECONDS = 60.0
STOP_SECONDS = 3.0
STANDBY_SECONDS = 3.0
"""How long after a start the next standby is made: until then, others need the cores."""

LISTENING = "stage listening on "
"""What a stage says on its standard output as soon as it can be called; the address follows."""

log = logging.getLogger(__name__)


class StageHandle(abc.ABC):
    """A started stage. address: where it listens. pid: None when it has none here."""

    address: tuple[str, int]
    pid: int | None

    @property
    @abc.abstractmethod
    def running(self) -> bool:
        """False once the stage has ended, for whatever reason."""

    @abc.abstractmethod
    async def ended(self) -> bool:
        """Wait until the stage has ended; whether its coordinator has sent it away for good."""

    @abc.abstractmethod
    async def stop(self) -> None:
        """End the stage and wait until it is gone. Calling it twice is allowed."""


class Launcher(abc.ABC):
    """Starts stages."""

    @abc.abstractmethod
    async def start(self, index: int, options: StageOptions) -> StageHandle:
        """Start stage `index` and wait until it listens. Raises RingError with what it said when it does not."""

    async def close(self) -> None:  # noqa: B027 - most hold nothing
        """Let go of what the launcher itself holds, after all of its stages have been stopped."""


class LocalLauncher(Launcher):
    """Stages as child processes. They end when this process does, even when it is killed.

    standby: keep one more process at hand that has done all of its start but for what a stage is told. A stage that
    is lost then comes back sooner, by what it takes to start Python and to load the library.
    """

    def __init__(self, *, standby: bool = False) -> None:
        self._keeps_standby = standby
        self._standby: LocalStage | None = None
        self._making: asyncio.Task[None] | None = None

    async def start(self, index: int, options: StageOptions) -> StageHandle:
        """See `Launcher.start`."""
        stage, self._standby = self._standby, None
        if stage is None or not stage.running:
            stage = await _new_process()
        try:
            await stage.become(index, msgspec.structs.replace(options, follow_parent=True))
        except BaseException:
            await stage.stop()
            raise
        if self._keeps_standby and self._making is None:
            self._making = asyncio.create_task(self._make_standby())
        return stage

    async def close(self) -> None:
        """See `Launcher.close`."""
        self._keeps_standby = False
        if self._making is not None:
            self._making.cancel()
            await asyncio.gather(self._making, return_exceptions=True)
        if self._standby is not None:
            await self._standby.stop()

    async def _make_standby(self) -> None:
        try:
            await asyncio.sleep(STANDBY_SECONDS)
            if self._standby is None:
                self._standby = await _new_process()
        except OSError as error:
            log.warning("no process can be kept at hand for a stage that is lost: %s", error)
        finally:
            self._making = None


async def _new_process() -> LocalStage:
    """A process that can become any stage."""
    return LocalStage(
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "longspan.ring.stage_process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    )


class LocalStage(StageHandle):
    """A stage in a child process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.address = ("127.0.0.1", 0)
        self.pid = process.pid
        self._index = -1
        self._process = process
        self._last_lines: collections.deque[str] = collections.deque(maxlen=20)
        self._relay = asyncio.create_task(self._read_errors())

    async def become(self, index: int, options: StageOptions) -> None:
        """Be this stage from now on; wait until it listens. Raises RingError with what it said when it does not."""
        assert self._process.stdin is not None
        self._index = index
        self._process.stdin.write(msgspec.json.encode(options) + b"\n")
        await self.await_listening()

    @property
    def running(self) -> bool:
        """See `StageHandle.running`."""
        return self._process.returncode is None

    async def await_listening(self) -> None:
        """Wait for the line that says where the stage listens."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(START_SECONDS):
                line = (await self._process.stdout.readline()).decode().strip()
        except TimeoutError:
            raise RingError(f"stage {self._index} did not listen within {START_SECONDS:g} s of its start") from None
        if not line.startswith(LISTENING):
            await self._process.wait()
            await self._relay
            said = "\n".join(self._last_lines) or line or f"exit code {self._process.returncode}"
            raise RingError(f"stage {self._index} could not start: {said}")
        self.address = parse_address(line.removeprefix(LISTENING))

    async def ended(self) -> bool:
        """See `StageHandle.ended`."""
        return await self._process.wait() == DismissedError.exit_code

    async def stop(self) -> None:
        """See `StageHandle.stop`."""
        if self.running:
            assert self._process.stdin is not None
            self._process.stdin.close()
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await self._process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
        await asyncio.gather(self._relay, return_exceptions=True)

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        while True:
            try:
                line = await self._process.stderr.readline()
            except ValueError:
                continue  # longer than the reader takes: dropped, so that the stage can go on writing
            if not line:
                return
            text = line.decode("utf-8", "replace").rstrip()
            self._last_lines.append(text)
            log.warning("stage %d: %s", self._index, text)
