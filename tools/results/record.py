"""The file of one result: the answer of its command, and where, when and at which commit it was measured."""

from __future__ import annotations

import datetime
import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from longspan.observe.machine import describe_machine

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "docs" / "results"


class Record(msgspec.Struct, frozen=True):
    """commit: "+" behind it says that the sources had changes besides. seconds: what the command took."""

    command: str
    date: str
    commit: str
    machine: dict[str, Any]
    result: Any
    seconds: float | None = None

    @property
    def machine_text(self) -> str:
        """The machine in one line."""
        machine = self.machine
        cores = f"{machine['cores']:g} cores of {machine['processor']}"
        return f"{cores}, {machine['system']}, llama.cpp b{machine['llama.cpp']}"


def new_record(command: str, answer: bytes, seconds: float) -> Record:
    """What a command has answered just now. Raises ValueError when that is no JSON."""
    machine = describe_machine()
    return Record(
        command,
        datetime.datetime.now(datetime.UTC).date().isoformat(),
        _commit(),
        {
            "system": machine.system,
            "processor": machine.processor,
            "cores": machine.cores_usable,
            "memory": machine.memory_total,
            "python": machine.python,
            "llama.cpp": machine.library.build,
        },
        json.loads(answer),
        round(seconds, 1),
    )


def file_of(name: str) -> Path:
    """Where a result is kept."""
    return RESULTS / f"{name}.json"


def write_record(name: str, record: Record) -> None:
    """Keep a result."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    file_of(name).write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def read_record(name: str) -> Record | None:
    """What was measured last, None when nothing was."""
    path = file_of(name)
    return msgspec.json.decode(path.read_bytes(), type=Record) if path.exists() else None


def _commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], stdout=subprocess.PIPE, check=True, cwd=ROOT)
        return done.stdout.decode().strip()

    return git("rev-parse", "--short=12", "HEAD") + "+" * bool(git("status", "--porcelain", "--", "src"))
