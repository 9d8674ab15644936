"""What this machine is: the facts that `longspan doctor` shows and that every measured result carries."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil

from longspan import __version__
from longspan.errors import RuntimeUnavailableError
from longspan.llamacpp import structs
from longspan.llamacpp.library import Library, load_library
from longspan.model.storage import cache_directory
from longspan.ring.llama_loader import default_threads

_DEVICE_KINDS = ("cpu", "gpu", "integrated gpu", "accelerator")
"""enum ggml_backend_dev_type, in its order."""


class Device(msgspec.Struct, frozen=True):
    """One compute device of the llama.cpp build. Memory in bytes; 0 when the build does not tell."""

    name: str
    description: str
    kind: str
    memory_free: int
    memory_total: int


class LibraryFacts(msgspec.Struct, frozen=True):
    """The llama.cpp library, or why there is none (`error`). `build` is the one whose struct layout it has."""

    path: str | None
    build: int | None
    version: str | None
    features: tuple[str, ...]
    devices: tuple[Device, ...]
    error: str | None


class Machine(msgspec.Struct, frozen=True):
    """This machine. Sizes in bytes.

    cores_usable: logical cores that this process may use (affinity and cgroup quota applied).
    default_threads: what a stage computes with when nothing is said.
    open_files: soft limit of open files; None when there is no limit.
    """

    longspan: str
    system: str
    processor: str
    cores_physical: int
    cores_logical: int
    cores_usable: float
    default_threads: int
    memory_total: int
    memory_available: int
    python: str
    python_path: str
    library: LibraryFacts
    cache: str
    cache_free: int
    cache_writable: bool
    open_files: int | None


def describe_machine(library_path: str | None = None) -> Machine:
    """Look at this machine. `library_path` names another libllama than the one inside xllamacpp."""
    cache = cache_directory()
    nearest = next(folder for folder in (cache, *cache.parents) if folder.exists())
    memory = psutil.virtual_memory()
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return Machine(
        longspan=__version__,
        system=_system(),
        processor=_processor(),
        cores_physical=psutil.cpu_count(logical=False) or 1,
        cores_logical=psutil.cpu_count() or 1,
        cores_usable=_usable_cores(),
        default_threads=default_threads(),
        memory_total=memory.total,
        memory_available=memory.available,
        python=platform.python_version(),
        python_path=sys.executable,
        library=_library_facts(library_path),
        cache=str(cache),
        cache_free=shutil.disk_usage(nearest).free,
        cache_writable=os.access(nearest, os.W_OK | os.X_OK),
        open_files=None if open_files == resource.RLIM_INFINITY else open_files,
    )


def _system() -> str:
    """Name and version of the operating system, kernel and machine type."""
    if sys.platform == "darwin":
        name = f"macOS {platform.mac_ver()[0]}"
    else:
        try:
            name = platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
        except OSError:
            name = platform.system()
    return f"{name}, kernel {platform.release()}, {platform.machine()}"


def _processor() -> str:
    """The processor's name as the system gives it."""
    if sys.platform == "darwin":
        found = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False
        )
        return found.stdout.strip() or platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):
            return value.strip()
    return platform.processor() or platform.machine()


def _usable_cores() -> float:
    """Cores that this process may use: its affinity, or less where a cgroup (v2) sets a quota."""
    cores: float = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        if quota != "max":
            cores = min(cores, round(int(quota) / int(period), 2))
    except (OSError, ValueError):
        pass
    return cores


def _library_facts(library_path: str | None) -> LibraryFacts:
    """Load the library (its struct layout is checked on the way) and ask it for its devices."""
    try:
        library = load_library(library_path)
    except RuntimeUnavailableError as error:
        return LibraryFacts(library_path, None, None, (), (), str(error))
    library.ggml_backend_load_all()
    devices = (_device(library, index) for index in range(library.ggml_backend_dev_count()))
    return LibraryFacts(
        path=str(library.path),
        build=structs.BUILD,
        version=library.llama_version().decode(),
        features=_features(library.llama_print_system_info().decode()),
        devices=tuple(devices),
        error=None,
    )


def _device(library: Library, index: int) -> Device:
    """Ask the library for one device."""
    device = library.ggml_backend_dev_get(index)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    library.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
    kind = library.ggml_backend_dev_type(device)
    return Device(
        name=library.ggml_backend_dev_name(device).decode(),
        description=library.ggml_backend_dev_description(device).decode(),
        kind=_DEVICE_KINDS[kind] if 0 <= kind < len(_DEVICE_KINDS) else f"kind {kind}",
        memory_free=free.value,
        memory_total=total.value,
    )


def _features(system_info: str) -> tuple[str, ...]:
    """The names that stand as `NAME = 1` in llama.cpp's line about itself."""
    _, _, flags = system_info.partition(":")
    pairs = (flag.partition("=") for flag in flags.split("|"))
    return tuple(name.strip() for name, _, value in pairs if value.strip() == "1")
