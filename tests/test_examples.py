"""The Kubernetes example, without a cluster: its shape, and that its command lines are ones that work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from longspan.model.storage import CACHE_VARIABLE
from tests.test_readme import assert_parses

FOLDER = Path(__file__).parent.parent / "examples" / "kubernetes"
DOCUMENTS: list[dict[str, Any]] = list(
    yaml.safe_load_all((FOLDER / "leaderworkerset.yaml").read_text(encoding="utf-8"))
)
LINES = (FOLDER / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
LEADER_WORKER_SET = DOCUMENTS[0]["spec"]["leaderWorkerTemplate"]
PODS = {role: LEADER_WORKER_SET[f"{role}Template"]["spec"] for role in ("leader", "worker")}


def test_it_is_a_leader_worker_set_and_a_service() -> None:
    kinds = [(document["apiVersion"], document["kind"]) for document in DOCUMENTS]
    assert kinds == [("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"), ("v1", "Service")]
    assert set(LEADER_WORKER_SET) == {"size", "restartPolicy", "leaderTemplate", "workerTemplate"}
    labels = LEADER_WORKER_SET["leaderTemplate"]["metadata"]["labels"]
    assert DOCUMENTS[1]["spec"]["selector"] == labels
    (leader,) = PODS["leader"]["containers"]
    stages = next(argument for argument in leader["args"] if argument.startswith("--stages="))
    assert LEADER_WORKER_SET["size"] == int(stages.partition("=")[2]) + 1, "the coordinator and its stages"


@pytest.mark.parametrize("role", PODS)
def test_a_pod_says_what_the_command_line_takes(role: str) -> None:
    (container,) = PODS[role]["containers"]
    known = {entry["name"] for entry in container.get("env", ())} | {"LWS_LEADER_ADDRESS"}
    for argument in container["args"]:
        assert set(re.findall(r"\$\((\w+)\)", argument)) <= known
    assert_parses("leaderworkerset.yaml", [re.sub(r"\$\(\w+\)", "192.0.2.7", each) for each in container["args"]])


@pytest.mark.parametrize("role", PODS)
def test_mounts_are_volumes_and_the_secret_is_not_for_everybody(role: str) -> None:
    pod = PODS[role]
    (container,) = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    assert volumes["ring"]["secret"]["defaultMode"] & 0o007 == 0, "what everybody can read is refused as a token"
    assert pod["securityContext"]["runAsNonRoot"]


def test_ports_that_are_probed_and_joined_are_those_that_are_listened_on() -> None:
    (leader,) = PODS["leader"]["containers"]
    (worker,) = PODS["worker"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in leader["ports"]}
    assert f"--port={ports['http']}" in leader["args"]
    assert f"--join=0.0.0.0:{ports['join']}" in leader["args"]
    assert f"--join=$(LWS_LEADER_ADDRESS):{ports['join']}" in worker["args"]
    assert f"--listen=$(POD_IP):{worker['ports'][0]['containerPort']}" in worker["args"]
    for probe, path in (("readinessProbe", "/ready"), ("livenessProbe", "/health")):
        assert leader[probe]["httpGet"] == {"path": path, "port": "http"}


def test_the_container_file_copies_what_there_is() -> None:
    words = [shlex.split(line) for line in LINES if line and not line.startswith("#")]
    assert {line[0] for line in words} <= {"FROM", "RUN", "COPY", "ENV", "USER", "VOLUME", "ENTRYPOINT", "CMD"}
    copied = [name for line in words if line[0] == "COPY" for name in line[1:-1]]
    assert copied and all((FOLDER.parent.parent / name).exists() for name in copied)
    assert any(line[0] == "ENV" and line[1].startswith(f"{CACHE_VARIABLE}=") for line in words)
    assert any(line[0] == "USER" and line[1] != "0" for line in words)
