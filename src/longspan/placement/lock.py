"""The topology lock: exactly which node holds which layers of exactly which model."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from longspan.errors import LockError, TopologyMismatchError
from longspan.placement.placement import Placement

LOCK_VERSION = 1
MOST_BYTES = 1 << 20
MOST_STAGES = 256
MOST_LAYERS = 4096
_DIGEST = re.compile(r"^[0-9a-f]{64}$")
_LONGEST_NAME = 255


class LockedStage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node with its layers [start, end). address: HOST:PORT, None where the node is known by its name."""

    node: str
    start: int
    end: int
    address: str | None = None


class TopologyLock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a ring must be. digest: of the weights, as stages compare it; layers: of the whole model."""

    version: int
    model_id: str
    digest: str
    layers: int
    stages: tuple[LockedStage, ...]

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Layers of each stage, in order."""
        return tuple((stage.start, stage.end) for stage in self.stages)


def lock_of(placement: Placement) -> TopologyLock:
    """The lock that a placement asks for."""
    stages = tuple(LockedStage(stage.node, stage.start, stage.end, stage.address) for stage in placement.stages)
    return TopologyLock(LOCK_VERSION, placement.model_id, placement.digest, placement.layers, stages)


def encode_lock(lock: TopologyLock) -> bytes:
    """The bytes of a lock file: JSON with a line for each stage."""
    return msgspec.json.format(msgspec.json.encode(lock), indent=2) + b"\n"


def decode_lock(data: bytes) -> TopologyLock:
    """The lock in a file's bytes, checked: contiguous, complete, each node once.

    Raises LockError.
    """
    if len(data) > MOST_BYTES:
        raise LockError(f"the lock has {len(data)} bytes, at most {MOST_BYTES} are allowed")
    try:
        version = msgspec.json.decode(data, type=dict[str, object]).get("version")
        if version != LOCK_VERSION or isinstance(version, bool):
            raise LockError(f"the lock has version {version!r:.40}, this Longspan reads {LOCK_VERSION}; plan again")
        lock = msgspec.json.decode(data, type=TopologyLock)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LockError(
            f"the lock cannot be read: {error}. Write one with `longspan plan … --lock FILE`."
        ) from None
    _check(lock)
    return lock


def _check(lock: TopologyLock) -> None:
    def demand(condition: bool, what: str) -> None:
        if not condition:
            raise LockError(f"the lock is damaged: {what}. Write one with `longspan plan … --lock FILE`.")

    demand(1 <= len(lock.model_id) <= _LONGEST_NAME, "its model_id is empty or too long")
    demand(_DIGEST.fullmatch(lock.digest) is not None, "its digest is not 64 hex digits")
    demand(1 <= lock.layers <= MOST_LAYERS, f"it is of {lock.layers} layers")
    demand(1 <= len(lock.stages) <= MOST_STAGES, f"it has {len(lock.stages)} stages")
    names: set[str] = set()
    expected = 0
    for stage in lock.stages:
        demand(1 <= len(stage.node) <= _LONGEST_NAME, "a node's name is empty or too long")
        demand(
            stage.address is None or 1 <= len(stage.address) <= _LONGEST_NAME, f"{stage.node} has a wrong address"
        )
        demand(stage.node not in names, f"the node {stage.node:.40} stands there twice")
        names.add(stage.node)
        demand(
            stage.start == expected < stage.end,
            f"{stage.node:.40} holds the layers {stage.start}-{stage.end} where {expected} was the next",
        )
        expected = stage.end
    demand(expected == lock.layers, f"no node holds the layers {expected}-{lock.layers}")
    addressed = {stage.address is not None for stage in lock.stages}
    demand(len(addressed) == 1, "some nodes have an address and some have none")


def check_topology(
    lock: TopologyLock, digest: str, layers: int, stages: Sequence[tuple[str | None, int, int]]
) -> None:
    """Compare a ring with its lock. stages: node or address, as far as it is known, and layers of each.

    Raises TopologyMismatchError that names the first difference.
    """

    def differ(what: str) -> None:
        raise TopologyMismatchError(f"the ring is not the locked one: {what}")

    if digest != lock.digest:
        differ(f"the lock is of the model {lock.digest[:12]} ({lock.model_id}), this is {digest[:12]}")
    if layers != lock.layers:
        differ(f"the lock is of {lock.layers} layers, this model has {layers}")
    if len(stages) != len(lock.stages):
        differ(f"the lock has {len(lock.stages)} stages, the ring {len(stages)}")
    for index, (locked, (name, start, end)) in enumerate(zip(lock.stages, stages, strict=True)):
        if (start, end) != (locked.start, locked.end):
            differ(
                f"stage {index} ({locked.node}) holds the layers {locked.start}-{locked.end} in the lock, "
                f"{start}-{end} in the ring"
            )
        if name is not None and name not in (locked.node, locked.address):
            differ(f"stage {index} is {locked.address or locked.node} in the lock, {name} in the ring")
