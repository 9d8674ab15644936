"""The facts about this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import psutil

from longspan.llamacpp import structs
from longspan.observe.machine import describe_machine


def test_the_facts_are_those_of_this_machine() -> None:
    machine = describe_machine()
    assert machine.python_path == sys.executable
    assert machine.memory_total == psutil.virtual_memory().total
    assert 0 < machine.cores_usable <= machine.cores_logical == os.cpu_count()
    assert 1 <= machine.default_threads <= machine.cores_logical
    assert machine.library.error is None
    assert machine.library.build == structs.BUILD
    assert [device.kind for device in machine.library.devices if device.name == "CPU"] == ["cpu"]
    assert machine.library.features


def test_a_library_that_is_none_is_an_error_and_no_crash(tmp_path: Path) -> None:
    machine = describe_machine(str(tmp_path / "libllama.so"))
    assert machine.library.error is not None and "no such file" in machine.library.error
    assert machine.library.devices == ()


def test_the_facts_survive_json() -> None:
    machine = describe_machine()
    assert msgspec.json.decode(msgspec.json.encode(machine), type=type(machine)) == machine
