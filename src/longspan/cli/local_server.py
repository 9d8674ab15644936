"""A `longspan serve` in a process of its own, and the little of HTTP that is needed to ask it."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from longspan.errors import LongspanError

LISTENING = re.compile(r"^listening on http://([^\s:]+):(\d+)$")
"""The line that `longspan serve` writes to its standard output when it can be asked."""

STOP_SECONDS = 15.0
ANSWER_SECONDS = 120.0
"""How long a stop may take before the process is killed, and a silence before an answer is given up."""


class LocalServer:
    """Where a served model can be asked. Every call opens a connection of its own."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    @property
    def url(self) -> str:
        """The address without a path."""
        return f"http://{self.host}:{self.port}"

    def get(self, path: str) -> bytes:
        """The body of a GET. Raises LongspanError when the answer is not 200."""
        with self._connection() as connection:
            connection.request("GET", path)
            return _checked(connection.getresponse()).read()

    def stream_chat(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The chunks of a streamed chat completion, as they come."""
        with self._connection() as connection:
            text = json.dumps({**body, "stream": True})
            connection.request("POST", "/v1/chat/completions", text, {"Content-Type": "application/json"})
            response = _checked(connection.getresponse())
            for line in response:
                data = line.decode().removeprefix("data: ").strip()
                if data == "[DONE]":
                    return
                if line.startswith(b"data: "):
                    yield json.loads(data)
        raise LongspanError(f"{self.url} ended the answer in the middle. Its log says why.")

    @contextlib.contextmanager
    def _connection(self) -> Iterator[http.client.HTTPConnection]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=ANSWER_SECONDS)
        try:
            yield connection
        except (OSError, http.client.HTTPException) as error:
            raise LongspanError(f"{self.url} does not answer: {error}. Is the server still running?") from error
        finally:
            connection.close()


@contextlib.contextmanager
def local_server(arguments: Sequence[str]) -> Iterator[LocalServer]:
    """Run `longspan serve ARGUMENTS` until the block ends.

    What it says on its standard error stream goes to ours. Raises LongspanError when it ends before it listens.
    """
    command = [sys.executable, "-m", "longspan", "serve", *arguments]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if found := LISTENING.match(line.rstrip()):
                    yield LocalServer(found[1], int(found[2]))
                    return
            raise LongspanError(
                f"longspan serve ended with exit code {process.wait()} before it was ready; see above."
            )
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _checked(response: http.client.HTTPResponse) -> http.client.HTTPResponse:
    """The response, if it is a success."""
    if response.status != 200:
        raise LongspanError(f"the server answered {response.status}: {response.read().decode(errors='replace')}")
    return response
