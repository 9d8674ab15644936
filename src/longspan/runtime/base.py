"""The contract between a stage and whatever runs its layers."""

from __future__ import annotations

import abc
import dataclasses

import numpy as np
import numpy.typing as npt

from longspan.schedule.span import Iteration, Sample, SpanFailure

Activations = npt.NDArray[np.float32]
"""Rows of the residual stream, shape (rows, width), float32, C order, in the order of the iteration's spans."""


@dataclasses.dataclass(frozen=True)
class Capacity:
    """What a runtime can hold and where it is exact.

    slots: KV streams. cells_per_slot: positions that one slot can hold.
    max_rows: most rows of one iteration.
    exact_rows: an iteration that holds a decode or verify row must have FEWER rows than this, or its rows may
        depend on what else is in the batch.
    """

    slots: int
    cells_per_slot: int
    max_rows: int
    exact_rows: int


@dataclasses.dataclass(frozen=True)
class StageOutput:
    """What one run gives.

    activations: (rows, width) for the next stage; None on the last stage.
    samples: on the last stage, one for each asked row of each span that did not fail.
    failures: spans that could not run. Their rows of `activations` are zeros, and later stages skip them.
    sub_batches: passes the library made over the layers. callback_seconds: time spent reading the residual out.
    drafting_seconds: time of the MTP head.
    """

    activations: Activations | None
    samples: tuple[Sample, ...] = ()
    failures: tuple[SpanFailure, ...] = ()
    sub_batches: int = 1
    callback_seconds: float = 0.0
    drafting_seconds: float = 0.0


class StageRuntime(abc.ABC):
    """Runs the layers `[start, end)` of a model for many sequences.

    Not thread-safe: one owner thread makes every call. Operations and trims happen inside `run`, before the rows.
    """

    @abc.abstractmethod
    def capacity(self) -> Capacity:
        """What this runtime can hold; constant over its life."""

    @abc.abstractmethod
    def run(
        self, iteration: Iteration, activations: Activations, failed: frozenset[int] = frozenset()
    ) -> StageOutput:
        """Apply the operations, trim every slot to its span's start, and run the rows.

        activations: (iteration.rows, width): token embeddings for the first stage, else the output of the stage
            before. `failed`: indices of spans that failed on an earlier stage and are not run here; the slots keep
            what they hold.
        Raises ProtocolError when the iteration is not well formed (counts, slots, order); then nothing was changed.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Release the memory. Calling it twice is allowed."""
