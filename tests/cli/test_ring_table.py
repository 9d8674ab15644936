"""The ring as a table."""

from __future__ import annotations

import pytest

from longspan.cli.ring_table import ring_table
from longspan.status import RingStatus, StageStatus


def test_a_ring_fits_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ready = StageStatus(0, 0, 15, "127.0.0.1:42421", "ready", "", 26549, 0.72, 25.0, 8, 4096, 64, 447 << 20)
    missing = StageStatus(1, 15, 30, "127.0.0.1:42422", "missing")
    lines = ring_table(RingStatus("demo", "b179", 1, 30, (ready, missing))).splitlines()
    assert lines[0].split() == [
        "stage",
        "layers",
        "state",
        "address",
        "process",
        "memory",
        "compute",
        "ms",
        "ping",
        "ms",
    ]
    assert lines[2].split() == ["0", "0-15", "ready", "127.0.0.1:42421", "26549", "447.0", "MiB", "25.0", "0.7"]
    assert lines[3].split() == ["1", "15-30", "missing", "127.0.0.1:42422", "–", "–", "–", "–"]
    assert max(len(line) for line in lines) <= 80
