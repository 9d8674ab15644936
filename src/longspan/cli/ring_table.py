"""The ring as a table."""

from __future__ import annotations

from longspan.cli.output import format_table, human_bytes
from longspan.status import RingStatus

_HEADINGS = ("stage", "layers", "state", "address", "process", "memory", "compute ms", "round trip ms")


def ring_table(ring: RingStatus) -> str:
    """One line a stage: its layers, where it runs, and what its last iterations took."""
    rows = (
        (
            stage.index,
            f"{stage.start}-{stage.end}",
            stage.state,
            stage.address,
            stage.pid,
            None if stage.memory_bytes is None else human_bytes(stage.memory_bytes),
            stage.compute_ms,
            stage.round_trip_ms,
        )
        for stage in ring.stages
    )
    return format_table(_HEADINGS, rows)
