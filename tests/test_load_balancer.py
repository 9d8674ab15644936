"""Two rings behind one address: `deploy/haproxy.cfg`, with addresses of this machine.

Needs haproxy. `python -m pytest -m 'soak or not soak' tests/test_load_balancer.py` runs all of it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.running import Running, free_port, longspan, running, streamed_tokens

FILE = Path(__file__).parent.parent / "deploy" / "haproxy.cfg"
HAPROXY = shutil.which("haproxy") or "/usr/sbin/haproxy"
SERVE = ("serve", "demo", "--stages", "2", "--threads", "1", "--slots", "2", "--context", "256", "--quiet")
PROMPT = "The old lighthouse keeper wrote in his diary:"
TOKENS = 24
NOTICED_SECONDS = 3.0
"""A check a second, and what a busy machine takes for it."""

needs_haproxy = pytest.mark.skipif(not Path(HAPROXY).exists(), reason="needs haproxy, from the system's packages")


def configuration(folder: Path, port: int, ports: tuple[int, int]) -> Path:
    """The file that we ship, with these ports of this machine in the place of its addresses."""
    text, replaced = re.subn(
        r"^    bind :8080$", f"    bind 127.0.0.1:{port}", FILE.read_text(), flags=re.MULTILINE
    )
    for name, each in zip(("ring-a", "ring-b"), ports, strict=True):
        text, once = re.subn(rf"{name}\.example:8080", f"127.0.0.1:{each}", text)
        replaced += once
    assert replaced == 3
    path = folder / "haproxy.cfg"
    path.write_text(text)
    return path


@needs_haproxy
def test_the_file_is_one_that_haproxy_takes(tmp_path: Path) -> None:
    path = configuration(tmp_path, 8080, (8081, 8082))
    done = subprocess.run([HAPROXY, "-c", "-f", str(path)], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr


class _Crowd:
    """Clients that ask one after the other until told to stop.

    answers: when each was asked for, and its tokens. failures: when, and what went wrong.
    """

    def __init__(self, url: str, clients: int) -> None:
        self.answers: list[tuple[float, list[int]]] = []
        self.failures: list[tuple[float, str]] = []
        self._url = url
        self._stopping = threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(clients)
        self._clients = [self._pool.submit(self._ask) for _ in range(clients)]

    def _ask(self) -> None:
        while not self._stopping.is_set():
            asked = time.monotonic()
            try:
                self.answers.append((asked, streamed_tokens(self._url, PROMPT, TOKENS)))
            except (httpx.HTTPError, AssertionError) as error:
                self.failures.append((asked, f"{type(error).__name__}: {error}"))

    def wait_for_answers(self, count: int) -> None:
        """Until so many more have come."""
        before, deadline = len(self.answers), time.monotonic() + 60
        while len(self.answers) < before + count:
            assert time.monotonic() < deadline, self.failures
            time.sleep(0.05)

    def stop(self) -> None:
        self._stopping.set()
        for client in self._clients:
            client.result()
        self._pool.shutdown()


@contextlib.contextmanager
def crowd(url: str, clients: int) -> Iterator[_Crowd]:
    there = _Crowd(url, clients)
    try:
        yield there
    finally:
        there.stop()


def requests_of(port: int) -> int:
    """Requests that a ring has finished."""
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    return sum(
        int(float(found)) for found in re.findall(r"^vllm:request_success_total\S* (\S+)$", text, re.MULTILINE)
    )


def started(process: Running) -> None:
    process.wait_for("listening on ")


@needs_haproxy
@pytest.mark.soak
def test_a_ring_stops_while_requests_go_on_and_comes_back(tmp_path: Path) -> None:
    port, first, second = free_port(), free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    with (
        running(*longspan(*SERVE, "--port", str(first))) as one,
        running(*longspan(*SERVE, "--port", str(second))) as other,
        running(HAPROXY, "-f", str(configuration(tmp_path, port, (first, second)))),
    ):
        started(one)
        started(other)
        expected = streamed_tokens(f"http://127.0.0.1:{first}", PROMPT, TOKENS)
        assert len(expected) == TOKENS
        assert streamed_tokens(f"http://127.0.0.1:{second}", PROMPT, TOKENS) == expected
        time.sleep(NOTICED_SECONDS)  # for the balancer to find both ready
        assert httpx.get(f"{url}/ready").status_code == 200
        assert httpx.delete(f"{url}/ring/stages/a").status_code == 403
        assert httpx.delete(f"http://127.0.0.1:{first}/ring/stages/a").status_code != 403, "the balancer refuses it"
        came: list[float] = []
        began = time.monotonic()
        streamed_tokens(url, PROMPT, 4 * TOKENS, lambda number: came.append(time.monotonic()))
        assert came[-1] - came[0] > 0.5 * (time.monotonic() - began), "pieces are passed on as they come"
        with crowd(url, 3) as asking:
            asking.wait_for_answers(8)
            assert requests_of(first) > 1 and requests_of(second) > 1, "both get their share"
            assert not asking.failures
            stopped = time.monotonic()
            other.end()
            time.sleep(NOTICED_SECONDS)
            noticed = time.monotonic()
            asking.wait_for_answers(6)
            with running(*longspan(*SERVE, "--port", str(second))) as again:
                started(again)
                time.sleep(NOTICED_SECONDS)
                asking.wait_for_answers(8)
                assert requests_of(second) > 0, "the ring that is back gets requests again"
                asking.stop()
        assert all(tokens == expected for _, tokens in asking.answers)
        broken = [failure for failure in asking.failures if failure[0] >= stopped]
        assert not [failure for failure in broken if failure[0] >= noticed], "new requests after it was noticed"
        # At most those that were on the ring when it stopped.
        assert len(asking.failures) <= 3, asking.failures
