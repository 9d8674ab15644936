"""Engines that form exactly the ring of a topology lock."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from longspan.engine.options import EngineOptions
from longspan.errors import LockError, UsageError
from longspan.model.source import ModelSource
from longspan.placement.lock import MOST_BYTES, TopologyLock, check_topology, decode_lock


def read_lock(path: Path) -> TopologyLock:
    """The lock in a file. Raises LockError."""
    try:
        with path.open("rb") as file:
            return decode_lock(file.read(MOST_BYTES + 1))
    except OSError as error:
        raise LockError(f"cannot read the lock {path}: {error.strerror or error}") from None


def locked(options: EngineOptions, source: ModelSource) -> EngineOptions:
    """The options with stages, addresses and ranges of their lock, if they name one.

    Nodes without an address are processes on this machine. Raises LockError, UsageError when options contradict the
    lock, and TopologyMismatchError that names where the model or the named stages are not the locked ones.
    """
    if options.lock is None:
        return options
    if options.stages > 1 or options.splits is not None or options.hold_first_stage:
        raise UsageError(
            "the lock says which stages there are: leave --stages, --splits and --hold-first-stage away"
        )
    lock = read_lock(Path(options.lock))
    addresses = tuple(stage.address for stage in lock.stages if stage.address is not None)
    if options.join is not None and addresses:
        raise UsageError("the lock has addresses, so its stages are called; leave --join away")
    names = options.ring or addresses or (None,) * len(lock.stages)
    ranges = (*lock.ranges, *((0, 0),) * len(names))
    check_topology(
        lock,
        source.digest,
        source.description.layers,
        [(name, start, end) for name, (start, end) in zip(names, ranges, strict=False)],
    )
    return dataclasses.replace(
        options,
        ring=addresses,
        stages=1 if addresses else len(lock.stages),
        splits=",".join(f"{start}-{end}" for start, end in lock.ranges),
    )


def locked_names(options: EngineOptions) -> dict[int, str]:
    """By stage, who must hold it when stages join by themselves; empty without a lock. Raises LockError."""
    if options.lock is None:
        return {}
    return {index: stage.node for index, stage in enumerate(read_lock(Path(options.lock)).stages)}
