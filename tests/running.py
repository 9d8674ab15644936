"""Processes of `longspan` and of other programs that tests start, and streams that tests read from them."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx

STOP_SECONDS = 30.0


class Running:
    """A process; lines: what it has said so far on both of its outputs."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str] | None = None) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            self.lines.extend(line.rstrip() for line in output)

    def wait_for(self, text: str, seconds: float = 120.0) -> str:
        """The first line with this text. Fails with everything that was said when it does not come."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if text in line:
                    return line
            if self.process.poll() is not None and not self._reading.is_alive():
                break
            time.sleep(0.05)
        raise AssertionError(f"no {text!r} in:\n" + "\n".join(self.lines))

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, wait for the end, and give the exit code."""
        self.process.send_signal(number)
        try:
            return self.process.wait(STOP_SECONDS)
        finally:
            self.process.kill()
            self.process.wait()
            self._reading.join(STOP_SECONDS)


@contextlib.contextmanager
def running(*arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[Running]:
    """A process that is ended afterwards, whatever happens."""
    process = Running(list(arguments), environment)
    try:
        yield process
    finally:
        process.end()


def longspan(*arguments: str) -> tuple[str, ...]:
    """The command line of `longspan ARGUMENTS` in this environment."""
    return sys.executable, "-m", "longspan", *arguments


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def streamed_tokens(
    url: str, prompt: str, count: int, on_token: Callable[[int], None] = lambda number: None
) -> list[int]:
    """Tokens of a sampled completion, one request. on_token: is told how many have come, after each piece.

    Raises httpx.HTTPError when it is refused or breaks off, and AssertionError for an error inside of the stream.
    """
    body = {
        "model": "default",
        "prompt": prompt,
        "max_tokens": count,
        "temperature": 0.8,
        "seed": 7,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    tokens: list[int] = []
    ended = False
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as answer:
        if answer.status_code != 200:
            answer.read()
        answer.raise_for_status()
        for line in answer.iter_lines():
            if not line.startswith("data: "):
                continue
            ended = line == "data: [DONE]"
            if ended:
                break
            event: dict[str, Any] = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            for choice in event["choices"]:
                tokens += choice.get("token_ids") or ()
            on_token(len(tokens))
    assert ended, f"the stream broke off after {len(tokens)} tokens"
    return tokens
