"""The demo model behind a real server, two stage processes and a coordinator, started once for these tests."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from longspan.cli.local_server import local_server


@pytest.fixture(scope="session")
def served_demo() -> Iterator[str]:
    """The URL of `longspan serve demo --stages 2`."""
    with local_server(["demo", "--stages", "2", "--threads", "1", "--context", "512", "--port", "0"]) as server:
        yield server.url


@pytest.fixture
def client(served_demo: str) -> Iterator[openai.OpenAI]:
    """The official client, as it comes, but without retries: a test wants to see the first answer."""
    with openai.OpenAI(base_url=f"{served_demo}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client
