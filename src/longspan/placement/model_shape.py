"""What placing needs to know of a model."""

from __future__ import annotations

import itertools

import msgspec


class ModelShape(msgspec.Struct, frozen=True):
    """Sizes of one model in bytes, and where it can be cut.

    layer_bytes: weights of each layer. shared_bytes: what every stage holds beside its layers. head_bytes: output
    norm and output matrix, on the last stage. position_bytes: keys and values of one position, for each layer.
    width: of the residual stream. vocabulary: tokens. refused: layer ranges that no stage can hold.
    """

    model_id: str
    digest: str
    layer_bytes: tuple[int, ...]
    shared_bytes: int
    head_bytes: int
    position_bytes: tuple[int, ...]
    width: int
    vocabulary: int
    refused: frozenset[tuple[int, int]] = frozenset()

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return len(self.layer_bytes)

    @property
    def shares(self) -> tuple[float, ...]:
        """Each layer's weight over that of the average layer: what it costs in relation to it."""
        average = sum(self.layer_bytes) / self.layers
        return tuple(size / average for size in self.layer_bytes)

    def share_before(self) -> tuple[float, ...]:
        """Shares of the layers before layer 0, 1, … and before the end."""
        return tuple(itertools.accumulate(self.shares, initial=0.0))
