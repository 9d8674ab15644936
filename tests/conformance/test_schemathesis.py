"""What `/openapi.json` says is true: schemathesis makes requests out of it and checks what comes back."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from longspan.cli.local_server import local_server

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(1800)]

CASES = 2000


@pytest.fixture
def briefly_served() -> Iterator[str]:
    """With a short context, for answers without a limit fill it."""
    arguments = ["demo", "--stages", "2", "--threads", "1", "--context", "128", "--port", "0"]
    with local_server(arguments) as server:
        yield server.url


def test_generated_requests(briefly_served: str, tmp_path: Path) -> None:
    """Well-formed and malformed ones: no status 5xx, nothing that the document does not describe."""
    command = [str(Path(sys.executable).parent / "schemathesis"), "run", f"{briefly_served}/openapi.json"]
    command += ["--phases", "examples,coverage,fuzzing", "--max-examples", "30", "--seed", "1"]
    # A request that the document allows may still be refused, by the name of the field: that a prompt is too long,
    # say, is not in it.
    command += ["--checks", "all", "--exclude-checks", "positive_data_acceptance"]
    command += ["--continue-on-failure", "--no-shrink", "--generation-database", "none", "--request-timeout", "120"]
    command += ["--suppress-health-check", "all"]
    root = Path(__file__).parents[2]
    environment = {
        **os.environ,
        "SCHEMATHESIS_HOOKS": "tests.conformance.schemathesis_hooks",
        "PYTHONPATH": str(root),
    }
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    sys.stdout.write(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr
    found = re.search(r"([\d,]+) generated, ([\d,]+) passed", run.stdout)
    assert found is not None
    generated, passed = (int(number.replace(",", "")) for number in found.groups())
    assert generated == passed >= CASES
