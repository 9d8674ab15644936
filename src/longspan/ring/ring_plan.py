"""Which stage holds which layers, and where it is."""

from __future__ import annotations

import dataclasses
import hmac
import secrets

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
    """What forming a ring needs.

    ring: its identity, new each time. dtype: of activations on the wire. trees: spans may be token trees.
    mtp_head: sha256 of the head that the last stage has to draft with; empty for whichever it has.
    """

    ring: str
    places: tuple[StagePlace, ...]
    slots: int
    cells_per_slot: int
    dtype: str
    delay_ms: float
    trees: bool = False
    mtp_head: str = ""

    def delay_between(self, sender: StagePlace | None, receiver: StagePlace | None) -> float:
        """Emulated one-way delay in milliseconds; None stands for the coordinator."""
        near = [place is None or place.near for place in (sender, receiver)]
        return 0.0 if all(near) else self.delay_ms


def ring_name(coordinator: str) -> str:
    """A new identity for a ring of this coordinator. coordinator: a secret of its own, without a dash."""
    return f"{coordinator}-{secrets.token_hex(8)}"


def same_coordinator(ring: str, other: str) -> bool:
    """Whether two rings are of one coordinator, the later of which takes the place of the earlier."""
    coordinator, dash, _ = ring.partition("-")
    return bool(dash) and hmac.compare_digest(coordinator.encode(), other.partition("-")[0].encode())


def parse_address(text: str) -> tuple[str, int]:
    """`host:port` (or `[v6]:port`) as (host, port). Raises UsageError."""
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise UsageError(f"{text!r} is not an address: expected HOST:PORT, for instance 192.0.2.7:7070")
    return host, int(port)
