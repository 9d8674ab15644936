"""`longspan doctor`: what this machine has, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from longspan.cli.output import human_bytes, print_facts, print_json
from longspan.observe.machine import Machine, describe_machine

MEMORY_NEEDED = 1 << 30
"""Below this, not even the demo model with its caches fits (about 0.5 GiB over two stages), with some room."""

DISK_NEEDED = 1 << 30
"""The demo model takes 100 MB, its stage files 120 MB for every way of splitting it."""

OPEN_FILES_NEEDED = 1024
"""A client of the server takes one, a link two; below the usual default something lowered it on purpose."""

GPU_FILES = ("/dev/nvidia0", "/dev/kfd")
"""Device files that a driver for NVIDIA or AMD cards makes."""


def doctor(*, library: str | None = None, json: bool = False) -> int:
    """Show what this machine has, and say what is wrong with it.

    Ends with exit code 1 when something is wrong that would keep Longspan from working.

    For example:

        longspan doctor
        longspan doctor --json
        longspan doctor --library /opt/llama.cpp/build/bin/libllama.so

    Parameters
    ----------
    library
        Look at this libllama instead of the one that comes with xllamacpp.
    json
        Print everything as JSON.
    """
    machine = describe_machine(library)
    problems = list(find_problems(machine))
    notes = list(find_notes(machine))
    if json:
        print_json({**msgspec.to_builtins(machine), "problems": problems, "notes": notes})
    else:
        print_facts(_facts(machine))
        print()
        for note in notes:
            print(f"note: {note}")
        for problem in problems:
            print(f"wrong: {problem}")
        if not problems:
            print("nothing is wrong: Longspan can run here")
    return 1 if problems else 0


def find_problems(machine: Machine) -> Iterator[str]:
    """What keeps Longspan from working here, each with what to do."""
    if machine.library.error is not None:
        yield machine.library.error
    if machine.memory_available < MEMORY_NEEDED:
        yield (
            f"only {human_bytes(machine.memory_available)} of memory is free; the demo model needs about "
            f"{human_bytes(MEMORY_NEEDED)}. Close something, or use a machine with more."
        )
    if not machine.cache_writable:
        yield (
            f"the cache directory {machine.cache} cannot be written. "
            "Change its owner, or set LONGSPAN_CACHE to a directory that can."
        )
    elif machine.cache_free < DISK_NEEDED:
        yield (
            f"only {human_bytes(machine.cache_free)} of disk is free at {machine.cache}; the demo model and its "
            f"stage files need about {human_bytes(DISK_NEEDED)}. Make room, or set LONGSPAN_CACHE elsewhere."
        )
    if machine.open_files is not None and machine.open_files < OPEN_FILES_NEEDED:
        yield (
            f"only {machine.open_files} files may be open at once; a server needs one for every client. "
            f"Raise it: ulimit -n {OPEN_FILES_NEEDED} or more."
        )


def find_notes(machine: Machine) -> Iterator[str]:
    """What works but is slower than it could be."""
    if machine.cores_usable < machine.cores_logical:
        yield (
            f"this process may use {machine.cores_usable:g} of {machine.cores_logical} cores; "
            "stages on this machine share them."
        )
    features = machine.library.features
    if machine.library.error is None and "x86_64" in machine.system and "AVX2" not in features:
        yield "this processor has no AVX2: quantised models run several times slower than they could."
    computes_on_gpu = any("gpu" in device.kind for device in machine.library.devices)
    if any(Path(file).exists() for file in GPU_FILES) and machine.library.error is None and not computes_on_gpu:
        yield "there is a GPU, but this build of llama.cpp computes on the CPU; name another with --library."


def _facts(machine: Machine) -> Iterator[tuple[str, str]]:
    """The lines of the page: a label and its text."""
    library = machine.library
    yield "longspan", machine.longspan
    yield "system", machine.system
    yield "processor", machine.processor
    yield (
        "cores",
        f"{machine.cores_physical} physical, {machine.cores_logical} logical, {machine.cores_usable:g} usable here",
    )
    yield "threads", f"{machine.default_threads} for a stage, unless --threads says otherwise"
    yield (
        "memory",
        f"{human_bytes(machine.memory_available)} free of {human_bytes(machine.memory_total)}",
    )
    yield "python", f"{machine.python} at {machine.python_path}"
    if library.error is None:
        yield "llama.cpp", f"build b{library.build} (version {library.version}), struct layout as expected"
        yield "library", str(library.path)
        yield "uses", " ".join(library.features)
        for device in library.devices:
            memory = f", {human_bytes(device.memory_free)} free" if device.memory_total else ""
            yield "device", f"{device.name}: {device.description} ({device.kind}{memory})"
    else:
        yield "llama.cpp", "not usable, see below"
    yield "cache", f"{machine.cache}, {human_bytes(machine.cache_free)} of disk free"
    yield "open files", "no limit" if machine.open_files is None else f"at most {machine.open_files}"
