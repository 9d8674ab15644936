"""Stages on a Ray cluster: three nodes simulated on this machine, each a set of real processes.

Needs `pip install '.[ray]'`; without it only the refusals are tested. Run all of it with
`python -m pytest -m 'soak or not soak' tests/ring/test_ray_launcher.py`.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from longspan.cli.main import main
from longspan.errors import RuntimeUnavailableError, UsageError
from longspan.ring.ray_launcher import RayLauncher
from longspan.ring.security import SecurityOptions
from longspan.ring.stage_process import StageOptions
from tests.running import Running, free_port, longspan, running, streamed_tokens

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs pip install '.[ray]'")

NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}
# A node that dies is noticed within seconds, and not within half a minute.
WATCHFUL = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 3,
}
PROMPT = "The old lighthouse keeper wrote in his diary:"
TOKENS = 160
KILL_AT = 24


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        from ray.cluster_utils import Cluster

        # Sockets have their places there, and those may not have long names.
        with tempfile.TemporaryDirectory(dir="/tmp", prefix="ray-", ignore_cleanup_errors=True) as folder:
            head = {**NODE, "include_dashboard": False, "temp_dir": folder, "_system_config": WATCHFUL}
            made = Cluster(initialize_head=True, head_node_args=head)
            try:
                for _ in range(2):
                    made.add_node(**NODE)
                yield made
            finally:
                made.shutdown()


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "ring.token"
    assert main(["keys", "token", str(path)]) == 0
    return str(path)


class _Service:
    """A coordinator and stages on the cluster; url: of the coordinator."""

    def __init__(self, up: Running, url: str) -> None:
        self.up = up
        self.url = url

    def pids(self) -> list[int]:
        """Process of each stage."""
        return [stage["pid"] for stage in httpx.get(f"{self.url}/ring").json()["stages"]]

    def raylets(self) -> list[int]:
        """Process of the Ray node that each stage is on."""
        return [
            next(parent.pid for parent in psutil.Process(pid).parents() if parent.name() == "raylet")
            for pid in self.pids()
        ]

    def tokens(self, at: int = 0, disturb: Any = None) -> list[int]:
        """Of one stream. disturb: called when so many have come."""
        disturbed = False

        def on_token(number: int) -> None:
            nonlocal disturbed
            if disturb is not None and number >= at and not disturbed:
                disturbed = True
                disturb()

        tokens = streamed_tokens(self.url, PROMPT, TOKENS, on_token)
        assert disturbed == (disturb is not None)
        return tokens


@pytest.fixture
def service(cluster: Any, token_file: str) -> Iterator[_Service]:
    join = f"127.0.0.1:{free_port()}"
    ring = ("--join", join, "--stages", "3", "--token-file", token_file, "--threads", "1")
    options = ("--slots", "2", "--context", "512", "--port", "0", "--heal-seconds", "120", "--quiet")
    with (
        running(*longspan("serve", "demo", *ring, *options)) as coordinator,
        running(*longspan("up", "--ray", cluster.address, *ring)) as up,
    ):
        assert up.wait_for("longspan serve MODEL") == f"longspan serve MODEL --join {join} --stages 3"
        yield _Service(up, coordinator.wait_for("listening on ").removeprefix("listening on "))


def _raylet(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def _gone(pid: int, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not psutil.pid_exists(pid)


@needs_ray
@pytest.mark.soak
def test_a_node_dies_and_ray_brings_the_stage_back_with_the_same_tokens(cluster: Any, service: _Service) -> None:
    undisturbed = service.tokens()
    assert len(undisturbed) == TOKENS
    before, raylets = service.pids(), service.raylets()
    nodes = [cluster.head_node, *cluster.worker_nodes]
    assert sorted(raylets) == sorted(_raylet(node) for node in nodes), "a stage on every node"
    victim = next(node for node in cluster.worker_nodes if _raylet(node) == raylets[1])
    added = []

    def lose_a_node() -> None:
        cluster.remove_node(victim, allow_graceful=False)
        assert _gone(before[1])
        added.append(_raylet(cluster.add_node(**NODE)))

    assert service.tokens(KILL_AT, lose_a_node) == undisturbed
    assert service.raylets() == [raylets[0], added[0], raylets[2]]
    after = service.pids()
    assert [new == old for new, old in zip(after, before, strict=True)] == [True, False, True]
    service.up.wait_for("is lost; Ray starts it again")
    service.up.wait_for("is back, and listens on")
    # A stage alone dies: its actor goes with it, and Ray starts both on the same node.
    assert service.tokens(KILL_AT, lambda: os.kill(after[2], signal.SIGKILL)) == undisturbed
    assert service.raylets() == [raylets[0], added[0], raylets[2]]
    assert service.pids()[2] != after[2]
    # A stage that the operator sends away is not started again; the others end with `up`.
    last = service.pids()
    assert httpx.delete(f"{service.url}/ring/stages/stage-2").status_code == 204
    service.up.wait_for("stage 2 was sent away by the coordinator")
    assert service.up.end(signal.SIGINT) == 0
    assert all(_gone(pid) for pid in last)


@needs_ray
@pytest.mark.soak
def test_a_cluster_that_is_too_small_or_not_there_is_said(cluster: Any, token_file: str) -> None:
    ring = ("--join", "127.0.0.1:1", "--token-file", token_file, "--threads", "1")
    with running(*longspan("up", "--ray", cluster.address, "--stages", "4", *ring)) as up:
        up.wait_for("4 stages need 4 Ray nodes with 1 CPUs each, and the cluster at")
        assert up.process.wait(30) == 3
    with running(*longspan("up", "--ray", cluster.address, "--stages", "2", *ring, "--model", "no.gguf")) as up:
        up.wait_for("could not start on the Ray cluster: stage ")
        assert "no.gguf" in up.wait_for("longspan: ")
        assert up.process.wait(30) == 2 or up.process.returncode == 3
    with running(*longspan("up", "--ray", f"127.0.0.1:{free_port()}", "--stages", "1", *ring)) as up:
        up.wait_for("cannot reach a Ray cluster at 127.0.0.1:")
        assert up.process.wait(30) == 3


async def test_without_ray_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RuntimeUnavailableError, match=r"pip install 'longspan\[ray\]'"):
        await RayLauncher("auto", 1).start(0, StageOptions(None, join="127.0.0.1:1"))


async def test_what_could_not_work_is_refused() -> None:
    with pytest.raises(UsageError, match="no address that stages can be started from"):
        RayLauncher("ray://192.0.2.1:10001", 1)
    with pytest.raises(UsageError, match="is not an address"):
        RayLauncher("192.0.2.1", 1)
    with pytest.raises(UsageError, match="join a coordinator"):
        await RayLauncher("auto", 1).start(0, StageOptions(None))
    keyed = StageOptions(None, join="127.0.0.1:1", security=SecurityOptions(keys="keys"))
    with pytest.raises(UsageError, match="one certificate"):
        await RayLauncher("auto", 2, share_nodes=True).start(0, keyed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --hosts FILE or --ray ADDRESS"),
        (("--hosts", "a", "--ray", "auto"), "give --hosts FILE or --ray ADDRESS"),
        (("--hosts", "a", "--stages", "2"), "are for --ray"),
        (("--ray", "auto", "--stages", "2"), "needs --stages and --join"),
        (("--ray", "auto", "--stages", "2", "--join", "here"), "is not an address"),
    ],
)
def test_a_command_line_that_says_too_little_or_too_much(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", *arguments]) == 2
    assert message in capsys.readouterr().err
