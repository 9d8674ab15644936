"""The real processes of a ring under attack: stages behind relays, and a coordinator that serves HTTP."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import signal
import socket
import sys

import msgspec
import psutil

from longspan.ring.stage_process import StageOptions
from tests.chaos.relay import Relay

SILENCE = 1.5
"""Seconds without a sign of life after which the coordinator gives a stage up."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Child:
    """A process that says in a line of its output that it is ready, and can be killed and started again."""

    def __init__(self, arguments: list[str], ready: str) -> None:
        self._arguments = arguments
        self._ready = ready
        self._process: asyncio.subprocess.Process | None = None
        self._reading: list[asyncio.Task[None]] = []
        self._up = asyncio.Event()
        self.last_lines: collections.deque[str] = collections.deque(maxlen=40)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, seconds: float = 600.0) -> None:
        """Start, and wait until it is ready. Raises RuntimeError with its last lines when it is not in time."""
        await self.end_reading()
        self._up.clear()
        self.last_lines.clear()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *self._arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        streams = (self._process.stdout, self._process.stderr)
        self._reading = [asyncio.create_task(self._read(stream)) for stream in streams]
        try:
            async with asyncio.timeout(seconds):
                await self._up.wait()
        except TimeoutError:
            raise RuntimeError("not ready: " + "\n".join(self.last_lines)) from None

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            text = line.decode("utf-8", "replace").rstrip()
            self.last_lines.append(text)
            if text.startswith(self._ready):
                self._up.set()

    async def end_reading(self) -> None:
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        self._reading = []

    def send(self, number: signal.Signals) -> None:
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)  # type: ignore[union-attr]

    async def kill(self) -> None:
        """SIGKILL, also when it is stopped, and wait until it is gone."""
        await self.end(signal.SIGKILL)

    async def end(self, number: signal.Signals) -> None:
        """Send a signal that ends it, and wait until it is gone."""
        self.send(number)
        if self._process is not None:
            await self._process.wait()
        await self.end_reading()

    def memory(self) -> int:
        """Resident bytes; 0 when it is not there."""
        try:
            return int(psutil.Process(self.pid).memory_info().rss)
        except (psutil.NoSuchProcess, AssertionError):
            return 0


class Ring:
    """Stages behind relays, and a coordinator; all of them processes."""

    def __init__(self, model: str, stages: int, *, slots: int, waiting: int, seed: int) -> None:
        self._model = model
        self._slots = slots
        self._waiting = waiting
        ports = [free_port() for _ in range(stages)]
        self.stages = [self._stage(port) for port in ports]
        self.relays = [Relay(port, seed + index) for index, port in enumerate(ports)]
        self.port = free_port()
        self.coordinator: Child

    def _stage(self, port: int) -> Child:
        options = StageOptions(self._model, port=port, threads=1)
        return Child(
            ["-m", "longspan.ring.stage_process", msgspec.json.encode(options).decode()], "stage listening on"
        )

    async def start(self) -> None:
        for relay in self.relays:
            await relay.start()
        self.coordinator = Child(
            [
                *("-m", "longspan", "serve", self._model, "--quiet", "--threads", "1", "--context", "256"),
                *("--ring", ",".join(f"127.0.0.1:{relay.port}" for relay in self.relays)),
                *("--port", str(self.port), "--slots", str(self._slots), "--heal-seconds", "1200"),
                *("--proposer", "ngram-cache", "--silence-seconds", str(SILENCE)),
                *("--max-waiting", str(self._waiting)),
            ],
            "listening on",
        )
        await asyncio.gather(*(stage.start() for stage in self.stages))
        await self.coordinator.start()

    async def replace(self, index: int) -> None:
        """Another process takes the place of a stage: new connections go there. The old one is the caller's."""
        port = free_port()
        other = self._stage(port)
        self.stages[index] = other
        await other.start()
        self.relays[index].target = port

    async def stop(self) -> None:
        await self.coordinator.kill()
        await asyncio.gather(*(stage.kill() for stage in self.stages))
        await asyncio.gather(*(relay.close() for relay in self.relays))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"
