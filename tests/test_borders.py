"""The rooms of the house and the arrows between them, read from the imports of every module."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "longspan"

VOCABULARY = {"errors", "request", "status", "longspan", "openmp"}
"""What any room may import: plain structs and exceptions, the package's own version, and how its threads wait."""

VOCABULARY_MODULES = {"longspan.schedule.span", "longspan.sampling.parameters"}
"""The words of the wire, which lie in a room of their own and are spoken in all."""

PURE = {"schedule", "speculate", "sampling", "placement"}
"""Rooms that get time and randomness passed in and touch nothing outside."""

BELOW: dict[str, set[str]] = {
    "longspan": {"llm"},
    "errors": set(),
    "openmp": set(),
    "status": {"schedule", "speculate"},
    "request": set(),
    "sampling": set(),
    "schedule": set(),
    "speculate": {"schedule", "sampling"},
    "placement": {"speculate"},
    "llamacpp": set(),
    "model": {"llamacpp"},
    "runtime": {"model", "llamacpp", "schedule", "speculate", "sampling"},
    "ring": {"placement", "runtime", "model", "llamacpp", "schedule", "sampling"},
    "engine": {"placement", "ring", "runtime", "model", "llamacpp", "schedule", "speculate", "sampling"},
    "llm": {"engine", "ring", "model", "schedule", "sampling"},
    "train": {"runtime", "model", "llamacpp"},
    "server": {"engine", "ring", "model", "schedule", "speculate", "sampling"},
    "observe": {"engine", "ring", "runtime", "model", "llamacpp", "schedule", "speculate", "sampling"},
    "lab": {"observe", "engine", "ring", "runtime", "model", "llamacpp", "schedule", "speculate", "sampling"},
    "bench": {
        *{"lab", "observe", "server", "engine", "placement", "ring", "runtime", "model"},
        *{"llamacpp", "schedule", "speculate", "sampling"},
    },
    "cli": {
        *{"llm", "bench", "lab", "observe", "server", "engine", "placement", "ring", "runtime", "model", "train"},
        *{"llamacpp", "schedule", "speculate", "sampling"},
    },
    "__main__": {"cli"},
}
"""For each room, the rooms it may import besides itself and the vocabulary."""

IMPURE_MODULES = {
    *{"asyncio", "concurrent", "ctypes", "datetime", "multiprocessing", "os", "pathlib", "random", "secrets"},
    *{"select", "selectors", "signal", "socket", "ssl", "subprocess", "tempfile", "threading", "time"},
    *{"gguf", "xllamacpp", "starlette", "uvicorn", "psutil", "logging"},
}

LONGEST_MODULE = 400
"""Lines. Modules are meant to stay at about 300; above this one, split it."""

MODULES = sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    """The first folder below the package, or the module's own name when it lies directly in it."""
    first = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    return "longspan" if first == "__init__" else first


def imported_modules(path: Path) -> Iterator[str]:
    """Full names of everything that a module imports, also inside functions and for types only."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively; write the full name"
            if node.module == "longspan":
                yield from (f"longspan.{alias.name}" for alias in node.names)
            elif node.module is not None:
                yield node.module


def imported_rooms(path: Path) -> set[str]:
    """Rooms that a module imports from; a name of the package itself counts as "longspan"."""
    rooms = set()
    for name in set(imported_modules(path)) - VOCABULARY_MODULES:
        package, _, rest = name.partition(".")
        room = rest.partition(".")[0]
        if package == "longspan":
            is_room = (SOURCE / room).is_dir() or (SOURCE / f"{room}.py").is_file()
            rooms.add(room if room and is_room else "longspan")
    return rooms


def identifier(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def test_every_room_has_a_place_in_the_house() -> None:
    assert {room_of(path) for path in MODULES} <= set(BELOW)


def test_the_arrows_have_no_circle() -> None:
    seen: list[str] = []

    def visit(room: str, above: tuple[str, ...]) -> None:
        assert room not in above, f"{' → '.join((*above, room))}"
        if room not in seen:
            for below in BELOW[room]:
                visit(below, (*above, room))
            seen.append(room)

    for room in BELOW:
        visit(room, ())


@pytest.mark.parametrize("path", MODULES, ids=identifier)
def test_imports_point_one_way(path: Path) -> None:
    room = room_of(path)
    wrong = imported_rooms(path) - BELOW[room] - VOCABULARY - {room}
    assert not wrong, f"{room} may not import {sorted(wrong)}; allowed: {sorted(BELOW[room] | VOCABULARY)}"


@pytest.mark.parametrize("path", [path for path in MODULES if room_of(path) in PURE], ids=identifier)
def test_pure_rooms_touch_nothing_outside(path: Path) -> None:
    wrong = {name.split(".")[0] for name in imported_modules(path)} & IMPURE_MODULES
    assert not wrong, f"{identifier(path)} is pure policy, but imports {sorted(wrong)}; pass it in"


def test_every_imported_package_is_declared() -> None:
    project = tomllib.loads((SOURCE.parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = (requirement for extra in project["optional-dependencies"].values() for requirement in extra)
    declared = {
        re.split(r"[<>=\[]", requirement)[0].replace("-", "_").lower()
        for requirement in (*project["dependencies"], *extras)
    }
    imported = {name.split(".")[0] for path in MODULES for name in imported_modules(path)}
    assert imported - sys.stdlib_module_names - {"longspan"} <= declared


@pytest.mark.parametrize("path", MODULES, ids=identifier)
def test_modules_stay_short(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST_MODULE, f"{identifier(path)} has {lines} lines; split it by noun"


def test_a_wrong_arrow_would_be_seen(tmp_path: Path) -> None:
    module = tmp_path / "planner.py"
    module.write_text("def now():\n    import time\n    from longspan.ring import link\n    return time, link\n")
    assert imported_rooms(module) - BELOW["schedule"] - VOCABULARY == {"ring"}
    assert {"time"} == set(imported_modules(module)) & IMPURE_MODULES
