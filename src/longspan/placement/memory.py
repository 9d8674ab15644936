"""What a stage needs of its machine's memory."""

from __future__ import annotations

import msgspec

from longspan.placement.demand import Demand
from longspan.placement.model_shape import ModelShape

PROCESS_BYTES = 80 << 20
"""The interpreter, the libraries and their pools: what `longspan bench plan` found a stage process to use beyond
the rest (Linux, x86_64), and a quarter more."""

SAMPLED_ROWS = 128
"""Rows of logits that the last stage keeps room for, at least (`runtime.llama.runtime.MAX_SAMPLES`)."""

_BYTES = 4
_WIDTHS = 12
"""Numbers that a row needs at once while it passes a layer, in widths of the residual stream: the stream itself
twice, queries, keys, values and the feed-forward's inside, which is three to four widths wide and there twice."""


class StageMemory(msgspec.Struct, frozen=True):
    """Bytes by purpose. activations: work space of a batch. head: output matrix and room for logits."""

    weights: int
    keys_and_values: int
    activations: int
    head: int
    process: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.keys_and_values + self.activations + self.head + self.process


def stage_memory(model: ModelShape, demand: Demand, start: int, end: int) -> StageMemory:
    """What the stage of the layers [start, end) needs."""
    last = end == model.layers
    logits = max(demand.slots, SAMPLED_ROWS) * model.vocabulary * _BYTES
    return StageMemory(
        weights=model.shared_bytes + sum(model.layer_bytes[start:end]),
        keys_and_values=demand.slots * demand.cells * sum(model.position_bytes[start:end]),
        activations=demand.max_rows * model.width * _WIDTHS * _BYTES,
        head=model.head_bytes + logits if last else 0,
        process=PROCESS_BYTES,
    )
