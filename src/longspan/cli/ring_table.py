"""The ring as a table."""

from __future__ import annotations

from longspan.cli.output import format_table, human_bytes
from longspan.status import RingStatus

_HEADINGS = ("stage", "layers", "state", "address", "process", "memory", "compute ms", "ping ms")


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
            _milliseconds(stage.compute_ms),
            _milliseconds(stage.round_trip_ms),
        )
        for stage in ring.stages
    )
    return format_table(_HEADINGS, rows)


def _milliseconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f}"
