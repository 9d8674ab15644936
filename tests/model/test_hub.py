"""The hub is a local HTTP server here. huggingface_hub reads its endpoint at import, hence the child processes."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from longspan.errors import ModelError
from longspan.model.hub import HubReference, parse_hub_reference

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.ThreadingHTTPServer):
    """Serves files under /owner/repo/resolve/REVISION/. cut: bytes after which the first answer breaks off."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.cut: int | None = None
        self.ranges: list[str | None] = []


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer(send=False)

    def do_GET(self) -> None:
        self._answer(send=True)

    def _answer(self, *, send: bool) -> None:
        content = self.server.files.get(self.path)
        if content is None:
            known = self.path.startswith("/owner/repo/")
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound" if known else "RepoNotFound")
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        wanted = self.headers.get("Range")
        start = int(wanted.removeprefix("bytes=").split("-")[0]) if wanted else 0
        self.send_response(206 if wanted else 200)
        self.send_header("ETag", f'"etag-{len(content)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("X-Linked-Size", str(len(content)))
        self.send_header("Content-Length", str(len(content) - start))
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if send:
            self.server.ranges.append(wanted)
            cut, self.server.cut = self.server.cut, None
            self.wfile.write(content[start : cut or len(content)])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tiny_path: Path) -> Iterator[Hub]:
    content = tiny_path.read_bytes()
    # huggingface_hub writes pieces of 10 MB: a fetch can only go on behind a whole one.
    large = content + bytes(25_000_000)
    names = {"sub/tiny.gguf": content, "large.gguf": large}
    server = Hub({f"/owner/repo/resolve/main/{name}": data for name, data in names.items()})
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def pull(reference: str, endpoint: str, home: Path) -> subprocess.CompletedProcess[str]:
    script = (
        "import sys, time\n"
        "time.sleep = lambda _: None\n"
        "from longspan.errors import LongspanError\n"
        "from longspan.model.reference import resolve\n"
        "try:\n"
        "    print(resolve(sys.argv[1]).path)\n"
        "except LongspanError as error:\n"
        "    sys.exit(str(error))\n"
    )
    environment = os.environ | {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    return subprocess.run(
        [sys.executable, "-c", script, reference],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_file_comes_from_the_hub_and_is_kept(hub: Hub, tiny_path: Path, tmp_path: Path) -> None:
    endpoint = f"http://127.0.0.1:{hub.server_port}"
    first = pull("hf://owner/repo/sub/tiny.gguf", endpoint, tmp_path / "hf")
    assert first.returncode == 0, first.stderr
    assert Path(first.stdout.strip()).read_bytes() == tiny_path.read_bytes()
    assert hub.ranges == [None]
    offline = pull("hf://owner/repo/sub/tiny.gguf", "http://127.0.0.1:9", tmp_path / "hf")
    assert offline.returncode == 0, offline.stderr
    missing = pull("hf://owner/repo/sub/none.gguf", endpoint, tmp_path / "hf")
    assert "owner/repo on the hub has no file 'sub/none.gguf'" in missing.stderr


def test_a_broken_fetch_goes_on_where_it_stopped(hub: Hub, tiny_path: Path, tmp_path: Path) -> None:
    hub.cut = 22_000_000
    done = pull("hf://owner/repo/large.gguf", f"http://127.0.0.1:{hub.server_port}", tmp_path / "hf")
    if done.returncode:
        assert "could not be fetched" in done.stderr or "what was fetched is kept" in done.stderr
        done = pull("hf://owner/repo/large.gguf", f"http://127.0.0.1:{hub.server_port}", tmp_path / "hf")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == tiny_path.read_bytes() + bytes(25_000_000)
    assert hub.ranges[0] is None
    assert (hub.ranges[1] or "").startswith("bytes=2")


def test_the_hub_is_out_of_reach(tmp_path: Path) -> None:
    done = pull("hf://owner/repo/tiny.gguf", "http://127.0.0.1:9", tmp_path / "hf")
    assert done.returncode == 1
    assert "is not in the cache and the hub cannot be reached. Check the network" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_such_repository(hub: Hub, tmp_path: Path) -> None:
    done = pull("hf://nobody/nothing/tiny.gguf", f"http://127.0.0.1:{hub.server_port}", tmp_path / "hf")
    assert "there is no nobody/nothing on the hub, or it is private" in done.stderr


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("hf://o/r/f.gguf", HubReference("o/r", "f.gguf", None)),
        ("hf://o/r/a/b/f-1.Q4_K_M.gguf", HubReference("o/r", "a/b/f-1.Q4_K_M.gguf", None)),
        ("hf://o/r@refs/pr/1/f.gguf", HubReference("o/r", "pr/1/f.gguf", "refs")),
        ("hf://o/r@main/f.gguf", HubReference("o/r", "f.gguf", "main")),
    ],
)
def test_references_to_the_hub(text: str, parsed: HubReference) -> None:
    assert parse_hub_reference(text) == parsed


@pytest.mark.parametrize(
    "text",
    ["hf://", "hf://o", "hf://o/r", "hf://o/r/f.bin", "hf://o/r/../f.gguf", "hf://o/r//f.gguf", "hf://../r/f.gguf"],
)
def test_what_is_no_reference_to_the_hub(text: str) -> None:
    with pytest.raises(ModelError, match="Write hf://OWNER/REPOSITORY/FILE"):
        parse_hub_reference(text)
