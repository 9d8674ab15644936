"""The demo over two processes, with speculation, for clients that are not ours.

These tests need the extra `conformance` and are started by `make conformance`; `make test` leaves them out.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from longspan.cli.local_server import local_server

CONTEXT = 1536
"""Room for the prompts of the suites and the 1,024 tokens that they ask for."""

if importlib.util.find_spec("llm_comply") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def served() -> Iterator[str]:
    """The URL of `longspan serve demo --stages 2`, which drafts from the text itself."""
    arguments = ["demo", "--stages", "2", "--threads", "1", "--context", str(CONTEXT), "--port", "0"]
    with local_server(arguments) as server:
        yield server.url


@pytest.fixture
def api(served: str) -> str:
    """The base URL that clients of the OpenAI API want."""
    return f"{served}/v1"
