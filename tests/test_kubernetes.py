"""The Kubernetes example, without a cluster: its shape, and that its command lines are ones that work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from longspan.cli.main import build_app
from longspan.model.storage import CACHE_VARIABLE
from longspan.ring.identity import NAME
from longspan.server.state import StateEndpoints
from tests.test_readme import assert_parses

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "deploy" / "kubernetes"
TEXT = (FOLDER / "leaderworkerset.yaml").read_text(encoding="utf-8")
DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all(TEXT))
LINES = (FOLDER / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
WORDS = [shlex.split(line) for line in LINES if line and not line.startswith("#")]
LEADER_WORKER_SET = DOCUMENTS[0]["spec"]["leaderWorkerTemplate"]
PODS = {role: LEADER_WORKER_SET[f"{role}Template"]["spec"] for role in ("leader", "worker")}
CONTAINERS = {role: pod["containers"][0] for role, pod in PODS.items()}

GIVEN = {"LWS_LEADER_ADDRESS"}
"""Variables that every pod of a LeaderWorkerSet has."""


def arguments(role: str) -> dict[str, str]:
    """Options of a container's command line, `--name=value` each."""
    return dict(word.removeprefix("--").split("=", 1) for word in CONTAINERS[role]["args"] if word[:2] == "--")


def test_it_is_a_leader_worker_set_and_a_service() -> None:
    kinds = [(document["apiVersion"], document["kind"]) for document in DOCUMENTS]
    assert kinds == [("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"), ("v1", "Service")]
    assert set(DOCUMENTS[0]["spec"]) == {"replicas", "startupPolicy", "leaderWorkerTemplate"}
    assert set(LEADER_WORKER_SET) == {"size", "restartPolicy", "leaderTemplate", "workerTemplate"}
    assert LEADER_WORKER_SET["restartPolicy"] == "None"
    # Else the stages would wait for a leader that waits for them.
    assert DOCUMENTS[0]["spec"]["startupPolicy"] == "LeaderCreated"
    assert LEADER_WORKER_SET["size"] == int(arguments("leader")["stages"]) + 1, "the coordinator and its stages"


def test_the_service_finds_the_coordinators_and_only_them() -> None:
    leader, worker = (LEADER_WORKER_SET[f"{role}Template"]["metadata"]["labels"] for role in PODS)
    selector = DOCUMENTS[1]["spec"]["selector"]
    assert selector.items() <= leader.items()
    assert not selector.items() <= worker.items()
    (port,) = DOCUMENTS[1]["spec"]["ports"]
    assert port["targetPort"] in {each["name"] for each in CONTAINERS["leader"]["ports"]}


@pytest.mark.parametrize("role", PODS)
def test_a_pod_says_what_the_command_line_takes(role: str) -> None:
    assert len(PODS[role]["containers"]) == 1
    container = CONTAINERS[role]
    known = {entry["name"] for entry in container.get("env", ())} | GIVEN
    for argument in container["args"]:
        assert set(re.findall(r"\$\((\w+)\)", argument)) <= known
    assert_parses("leaderworkerset.yaml", [re.sub(r"\$\(\w+\)", "192.0.2.7", each) for each in container["args"]])


def test_a_stage_is_called_as_its_pod_and_takes_its_place_when_it_comes_back() -> None:
    assert arguments("worker")["name"] == "$(POD_NAME)"
    (variable,) = (entry for entry in CONTAINERS["worker"]["env"] if entry["name"] == "POD_NAME")
    assert variable["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    name = DOCUMENTS[0]["metadata"]["name"]
    assert NAME.fullmatch(f"{name}-0-1"), "what the set calls the first worker of its first group"


@pytest.mark.parametrize("role", PODS)
def test_threads_are_the_cpus_that_are_asked_for(role: str) -> None:
    """A container sees all cores of its node, whatever it may use of them."""
    requests = CONTAINERS[role]["resources"]["requests"]
    assert requests["memory"]
    if "threads" in arguments(role):
        assert requests["cpu"] == arguments(role)["threads"]
    else:
        assert role == "leader", "who computes says with how many threads"


@pytest.mark.parametrize("role", PODS)
def test_secrets_and_mounts_agree(role: str) -> None:
    pod, container = PODS[role], CONTAINERS[role]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert set(mounts) == set(volumes)
    secret = volumes["ring"]["secret"]
    made = re.search(r"create secret generic (\S+) --from-file=(\S+)=(\S+)", TEXT)
    written = re.search(r"longspan (keys token .+)", TEXT)
    assert made is not None and written is not None
    assert_parses("leaderworkerset.yaml", shlex.split(written[1]))
    assert written[1].split()[-1] == made[3]
    assert secret["secretName"] == made[1]
    assert arguments(role)["token-file"] == f"{mounts['ring']['mountPath']}/{made[2]}"
    assert mounts["ring"]["readOnly"]
    assert secret["defaultMode"] & 0o007 == 0, "what everybody can read is refused as a token"
    assert secret["defaultMode"] & 0o040, "the group of the pod reads it"
    assert pod["securityContext"]["runAsNonRoot"]
    (user,) = (line[1] for line in WORDS if line[0] == "USER")
    assert pod["securityContext"]["fsGroup"] == int(user)
    (cache,) = (line[1].partition("=")[2] for line in WORDS if line[0] == "ENV")
    assert mounts["cache"]["mountPath"] == cache


def test_ports_that_are_probed_and_joined_are_those_that_are_listened_on() -> None:
    leader, worker = CONTAINERS["leader"], CONTAINERS["worker"]
    ports = {port["name"]: port["containerPort"] for port in leader["ports"]}
    assert set(ports) == {"http", "join"}
    assert arguments("leader")["port"] == str(ports["http"])
    assert arguments("leader")["host"] == "0.0.0.0"
    assert arguments("leader")["join"] == f"0.0.0.0:{ports['join']}"
    assert arguments("worker")["join"] == f"$(LWS_LEADER_ADDRESS):{ports['join']}"
    assert arguments("worker")["listen"] == f"$(POD_IP):{worker['ports'][0]['containerPort']}"


def test_probes_ask_what_the_server_answers() -> None:
    served = {route.path for route in StateEndpoints(cast(Any, None)).routes()}
    leader = CONTAINERS["leader"]
    for probe, path in (("readinessProbe", "/ready"), ("livenessProbe", "/health")):
        assert leader[probe]["httpGet"] == {"path": path, "port": "http"}
        assert path in served
    # A ring that heals is not ready, and must not be killed for it: only /health is asked for that.
    assert set(CONTAINERS["worker"]) & {"readinessProbe", "livenessProbe"} == set(), "a stage answers no HTTP"


def test_images_have_names_and_no_hosts() -> None:
    bases = [line[1] for line in WORDS if line[0] == "FROM"]
    for image in (*bases, *(container["image"] for container in CONTAINERS.values())):
        assert re.fullmatch(r"[a-z]+(:[a-z0-9.-]+)?", image)


def test_the_container_file_copies_what_there_is_and_starts_longspan() -> None:
    assert {line[0] for line in WORDS} <= {"FROM", "RUN", "COPY", "ENV", "USER", "VOLUME", "ENTRYPOINT", "CMD"}
    copied = [name for line in WORDS if line[0] == "COPY" for name in line[1:-1]]
    assert copied and all((ROOT / name).exists() for name in copied)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for needed in re.findall(r'^(?:readme = |license-files = \[)"([^"]+)"', project, re.MULTILINE):
        assert needed in copied, "the project cannot be built without"
    assert any(line[0] == "ENV" and line[1].startswith(f"{CACHE_VARIABLE}=") for line in WORDS)
    assert any(line[0] == "USER" and line[1] != "0" for line in WORDS)
    assert 'ENTRYPOINT ["longspan"]' in LINES
    assert build_app().name == ("longspan",)
