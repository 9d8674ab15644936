"""Which stage holds which layers, and where it is."""

from __future__ import annotations

import dataclasses

from longspan.errors import UsageError


@dataclasses.dataclass(frozen=True)
class StagePlace:
    """Layers `[start, end)` at an address, or in the coordinator's own process (address None).

    near: on the coordinator's machine, so that no emulated link lies between them.
    """

    index: int
    start: int
    end: int
    address: tuple[str, int] | None
    near: bool = False


@dataclasses.dataclass(frozen=True)
class RingPlan:
    """What forming a ring needs. ring: its identity, new each time. dtype: of activations on the wire."""

    ring: str
    places: tuple[StagePlace, ...]
    slots: int
    cells_per_slot: int
    dtype: str
    delay_ms: float

    def delay_between(self, sender: StagePlace | None, receiver: StagePlace | None) -> float:
        """Emulated one-way delay in milliseconds; None stands for the coordinator."""
        near = [place is None or place.near for place in (sender, receiver)]
        return 0.0 if all(near) else self.delay_ms


def parse_address(text: str) -> tuple[str, int]:
    """`host:port` (or `[v6]:port`) as (host, port). Raises UsageError."""
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise UsageError(f"{text!r} is not an address: expected HOST:PORT, for instance 192.0.2.7:7070")
    return host, int(port)
