"""Opens a model's layers with llama.cpp."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import psutil

from longspan.errors import RingError
from longspan.llamacpp.library import load_library
from longspan.model.architecture import find_architecture
from longspan.model.draft_model import DraftModel, compose_draft_model
from longspan.model.grammar import GrammarVocabulary
from longspan.model.mtp_head import check_belongs, find_head, read_head
from longspan.model.nextn import carries_head, compose_own_head
from longspan.model.source import ModelSource
from longspan.model.tokenizer import Tokenizer
from longspan.ring.loader import StageLoader
from longspan.ring.messages import Assignment
from longspan.runtime.base import StageRuntime
from longspan.runtime.llama.memory import free_bytes
from longspan.runtime.llama.mtp import DRAFT_LENGTH, LEAST_CHANCE
from longspan.runtime.llama.runtime import LlamaRuntime, Sampler
from longspan.sampling.sampler import sample


def default_threads(stages_here: int = 1) -> int:
    """Threads of one stage when `stages_here` share this machine's cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count(logical=False)
    return max(1, (cores or 1) // stages_here)


class LlamaLoader(StageLoader):
    """A `StageLoader` over a model source.

    threads: of the compute, None for all cores. sampler: of the last stage.
    mtp_head: what drafts on the last stage: a head's file; True for the one that Longspan carries for the model,
    else the model's own MTP layer, if there is either; False for none.
    draft_length, least_chance: see `MtpDrafter`.
    """

    def __init__(
        self,
        source: ModelSource,
        *,
        threads: int | None = None,
        library: str | None = None,
        sampler: Sampler = sample,
        mtp_head: Path | bool = True,
        draft_length: int = DRAFT_LENGTH,
        least_chance: float = LEAST_CHANCE,
    ) -> None:
        description = source.description
        self._source = source
        self._architecture = find_architecture(description.architecture)
        self._threads = threads or default_threads()
        self._library = library
        self._sampler = sampler
        self._mtp_head = mtp_head
        self._draft_length = draft_length
        self._least_chance = least_chance
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
        head = self._draft_model(path, assignment.mtp_head) if end == self.layers else None
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
            head=head,
            draft_length=self._draft_length,
            least_chance=self._least_chance,
            trees=assignment.trees,
            vocabulary=lambda: GrammarVocabulary(Tokenizer(self._source.vocabulary_file(), library=library)),
        )

    def free_bytes(self) -> int:
        """See `StageLoader.free_bytes`."""
        return free_bytes(load_library(self._library))

    def _draft_model(self, stage_file: Path, wanted: str) -> DraftModel | None:
        """What drafts. wanted: sha256 of the head that the coordinator was given; empty for none in particular."""
        named = self._mtp_head if isinstance(self._mtp_head, Path) else None
        head = read_head(named) if named is not None else None
        if wanted and (head is None or head.digest != wanted):
            has = f"the head {named} (sha256 {head.digest[:12]}…)" if head is not None else "none that was named"
            raise RingError(
                f"the coordinator drafts with the MTP head of sha256 {wanted[:12]}…, this stage has {has}. Start "
                "it with --mtp-head and a copy of the same file."
            )
        if head is not None:
            check_belongs(head, self._source)
        if self._mtp_head is False:
            return None
        if head is None:
            carried = find_head(self._source)
            if carried is None:
                return compose_own_head(self._source, self._library) if carries_head(self._source) else None
            head = read_head(carried)
        embedding = self._source.token_embedding(self._library)
        return compose_draft_model(head, stage_file, embedding, self._source.digest)
