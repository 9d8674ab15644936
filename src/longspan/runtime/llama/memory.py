"""Whether the keys and values of a stage fit this machine's memory: asked before they are allocated.

llama.cpp allocates them at once and fills them, so that too many end the process, and others with it.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import psutil

from longspan.errors import LongspanError
from longspan.llamacpp.library import Library
from longspan.model.gguf_file import read_gguf
from longspan.model.weights import position_bytes

_GPU, _INTEGRATED_GPU = 1, 2
"""Of enum ggml_backend_dev_type: devices that hold all layers when there is one."""


def check_memory(library: Library, path: Path, slots: int, cells: int) -> None:
    """Raise LongspanError with both numbers when `slots` times `cells` positions of a stage file do not fit."""
    needed = slots * cells * sum(position_bytes(read_gguf(path)))
    free = free_bytes(library)
    if needed > free:
        raise LongspanError(
            f"{slots} slots with {cells} positions each need {needed / 1e9:.1f} GB for keys and values, and this "
            f"machine has {free / 1e9:.1f} GB free. Use fewer slots (--slots) or a shorter context (--context)."
        )


def free_bytes(library: Library) -> int:
    """Free memory of the graphics cards together, or of the machine when it has none."""
    total, cards = 0, 0
    for index in range(library.ggml_backend_dev_count()):
        device = library.ggml_backend_dev_get(index)
        if library.ggml_backend_dev_type(device) in (_GPU, _INTEGRATED_GPU):
            free, whole = ctypes.c_size_t(), ctypes.c_size_t()
            library.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(whole))
            total += free.value
            cards += 1
    return total if cards else int(psutil.virtual_memory().available)
