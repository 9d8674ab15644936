"""What the ring is planned for."""

from __future__ import annotations

import msgspec

from longspan.errors import UsageError


class Demand(msgspec.Struct, frozen=True):
    """The load that a placement shall serve.

    slots, cells: requests that have memory at once, and positions of each. streams: requests that decode at once
    when the speed is predicted. depth: positions that each looks back on then. acceptance: chance that a draft is
    right when those before it are. value_bytes: of one number of an activation on its way. max_rows: of a batch.
    """

    slots: int = 8
    cells: int = 4096
    streams: int = 1
    depth: int = 512
    acceptance: float = 0.7
    value_bytes: int = 4
    max_rows: int = 512

    def __post_init__(self) -> None:
        for name, low, high in (
            ("slots", 1, 256),
            ("cells", 2, 1 << 24),
            ("streams", 1, 256),
            ("depth", 0, 1 << 24),
        ):
            if not low <= getattr(self, name) <= high:
                raise UsageError(f"{name} is {getattr(self, name)}, expected {low} to {high}")
        if not 0.0 <= self.acceptance < 1.0:
            raise UsageError(f"acceptance is {self.acceptance:g}, expected a chance from 0 to below 1")
