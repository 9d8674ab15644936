"""What training is told."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from longspan.errors import UsageError

CARRIED = "carried"
"""In the place of a head's file: the one that Longspan carries for the model."""


@dataclasses.dataclass(frozen=True)
class TrainingOptions:
    """How to train, or to measure, a head.

    out: file of the head. minutes: for everything together. resume: a head to go on from, None for the model's own
    last block. texts: directory of written texts, None for one beside `out` that is removed at the end. disk_bytes:
    most bytes of texts. threads: of the CPU. device: "auto", "cpu" or "cuda". library: another libllama.
    steps: end after so many, whatever time is left.
    """

    out: Path
    minutes: float = 5.0
    resume: str | None = None
    texts: Path | None = None
    disk_bytes: int = 8 << 30
    threads: int = 1
    device: str = "auto"
    seed: int = 0
    library: str | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.minutes <= 60 * 24 * 30:
            raise UsageError(f"{self.minutes} minutes are asked for, expected more than 0 and at most a month")
        if self.disk_bytes < 1 << 20:
            raise UsageError(f"texts may take {self.disk_bytes} bytes, at least {1 << 20} are needed (--disk)")
        if self.threads < 1:
            raise UsageError(f"{self.threads} threads are asked for, expected at least 1")
