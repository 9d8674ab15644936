"""Opens a model's layers with llama.cpp."""

from __future__ import annotations

import os
from collections.abc import Callable

import psutil

from longspan.llamacpp.library import load_library
from longspan.model.architecture import find_architecture
from longspan.model.source import ModelSource
from longspan.ring.messages import Assignment
from longspan.runtime.base import StageRuntime
from longspan.runtime.llama.runtime import LlamaRuntime, Sampler
from longspan.sampling.sampler import sample


def default_threads(stages_here: int = 1) -> int:
    """Threads of one stage when `stages_here` share this machine's cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count(logical=False)
    return max(1, (cores or 1) // stages_here)


class LlamaLoader:
    """A `StageLoader` over a model source.

    threads: of the compute, None for all cores. sampler: of the last stage.
    """

    def __init__(
        self,
        source: ModelSource,
        *,
        threads: int | None = None,
        library: str | None = None,
        sampler: Sampler = sample,
    ) -> None:
        description = source.description
        self._source = source
        self._architecture = find_architecture(description.architecture)
        self._threads = threads or default_threads()
        self._library = library
        self._sampler = sampler
        self.digest = source.digest
        self.layers = description.layers
        self.width = description.width
        self.dtypes = description.activation_dtypes

    def load(self, assignment: Assignment, report: Callable[[str], None]) -> StageRuntime:
        """See `StageLoader.load`."""
        start, end = assignment.start, assignment.end
        library = load_library(self._library)
        report(f"composing layers {start}-{end}")
        path = self._source.stage_file(start, end)
        report(f"loading layers {start}-{end} and checking exactness")
        return LlamaRuntime(
            library,
            path,
            layers=end - start,
            last=end == self.layers,
            slots=assignment.slots,
            cells_per_slot=assignment.cells_per_slot,
            threads=self._threads,
            residual=self._architecture.residual,
            input_tensor=self._architecture.input_tensor,
            width=self.width,
            sampler=self._sampler,
        )
