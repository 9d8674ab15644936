"""The machines that layers can be placed on, and the links between them."""

from __future__ import annotations

import math

import msgspec

COORDINATOR = "coordinator"
"""The name that stands for the coordinator where links are given."""

FRAME_SECONDS = 0.0002
"""What a stage takes for a frame besides its layers; `longspan bench ring` measures a hop."""


class Node(msgspec.Struct, frozen=True):
    """One machine that can hold a stage.

    memory_bytes: what a stage may use there, of which reserve_bytes are kept free.
    layer_seconds: one row through one average layer of the model. row_seconds: each further row of a batch through
    it. position_seconds: what each position that a row looks back on adds, for a layer. head_seconds: sampling one
    row with the output matrix. iteration_seconds: what every iteration costs beside its layers.
    layers: the range that this node must hold, None where it may hold any or none. address: where it listens.
    """

    name: str
    memory_bytes: int
    layer_seconds: float
    reserve_bytes: int = 0
    row_seconds: float | None = None
    position_seconds: float = 0.0
    head_seconds: float | None = None
    iteration_seconds: float = FRAME_SECONDS
    layers: tuple[int, int] | None = None
    address: str | None = None

    @property
    def usable_bytes(self) -> int:
        """Memory that a placement may fill."""
        return max(0, self.memory_bytes - self.reserve_bytes)

    @property
    def further_row_seconds(self) -> float:
        """`row_seconds`, or when nobody knows it what one row takes."""
        return self.layer_seconds if self.row_seconds is None else self.row_seconds


class Link(msgspec.Struct, frozen=True):
    """How far two machines are from each other. bytes_per_second: infinite when nobody said."""

    seconds: float
    bytes_per_second: float = math.inf

    def crossing(self, size: int) -> float:
        """Seconds until `size` bytes are on the other side."""
        return self.seconds + size / self.bytes_per_second


class Network(msgspec.Struct, frozen=True):
    """One-way links between the coordinator and the nodes, alike in both directions.

    usual: of all pairs that `links` does not name. links: keys are pairs of names in alphabetical order.
    """

    usual: Link
    links: dict[tuple[str, str], Link] = {}

    def between(self, one: str, other: str) -> Link:
        """The link of two different machines."""
        return self.links.get((min(one, other), max(one, other)), self.usual)
