"""What became of a run of faults."""

from __future__ import annotations

import collections
import dataclasses
import statistics
from typing import Any

SAMPLES = 12
"""A process that lived through fewer faults says nothing about memory."""

FLAT_BYTES = 24 << 20
"""How much more a process may hold at the end of its life than when it was warm."""


class MemoryWatch:
    """Resident bytes of every process, once a fault, by its number: they start anew at different times."""

    def __init__(self) -> None:
        self._lives: dict[int, tuple[str, list[int]]] = {}

    def look(self, name: str, pid: int, resident: int) -> None:
        """Note what a process holds now."""
        if resident:
            self._lives.setdefault(pid, (name, []))[1].append(resident)

    def growth(self) -> dict[str, list[float]]:
        """By name: MiB of growth of every process that lived long enough, from its third sample to its end."""
        grown: dict[str, list[float]] = {}
        for name, samples in self._lives.values():
            if len(samples) >= SAMPLES:
                more = statistics.median(samples[-3:]) - statistics.median(samples[2:5])
                grown.setdefault(name, []).append(round(more / (1 << 20), 1))
        return grown

    @property
    def flat(self) -> bool:
        """Whether nobody has grown."""
        return all(more * (1 << 20) <= FLAT_BYTES for grown in self.growth().values() for more in grown)


@dataclasses.dataclass
class Outcome:
    """Counts of one run against one ring.

    refused: by a full waiting line, with 429. lost_with_coordinator: ran while it was restarted. unclear: errors
    that say nothing. reloaded: stages that loaded again although only the coordinator was another one.
    longest_pause: seconds between two tokens of a stream. recovery: longest time, for each kind of fault, until
    the ring was ready again, in seconds. standstill: of the whole machine, see `Clock`.
    """

    stages: int
    faults: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    finished: int = 0
    wrong: int = 0
    refused: int = 0
    lost: list[str] = dataclasses.field(default_factory=list)
    lost_with_coordinator: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    unclear: list[str] = dataclasses.field(default_factory=list)
    reloaded: int = 0
    tokens: int = 0
    longest_pause: float = 0.0
    recovery: dict[str, float] = dataclasses.field(default_factory=dict)
    memory: MemoryWatch = dataclasses.field(default_factory=MemoryWatch)
    seconds: float = 0.0
    standstill: float = 0.0

    @property
    def good(self) -> bool:
        """Nothing is lost, nothing is wrong, nothing grows."""
        harmed = self.wrong or self.lost or self.unclear or self.reloaded
        return not harmed and self.memory.flat and self.finished > 0

    def summary(self) -> dict[str, Any]:
        """For a person, and as JSON."""
        return {
            "stages": self.stages,
            "faults": dict(sorted(self.faults.items())),
            "faults_all": sum(self.faults.values()),
            "requests_finished": self.finished,
            "tokens_compared": self.tokens,
            "requests_with_other_tokens": self.wrong,
            "requests_lost": self.lost,
            "requests_refused_by_a_full_queue": self.refused,
            "lost_with_the_coordinator": dict(self.lost_with_coordinator),
            "unclear_errors": self.unclear,
            "stages_that_loaded_again": self.reloaded,
            "longest_pause_seconds": round(self.longest_pause, 2),
            "longest_recovery_seconds": {kind: round(took, 2) for kind, took in sorted(self.recovery.items())},
            "memory_growth_mib": self.memory.growth(),
            "seconds": round(self.seconds, 1),
            "seconds_of_standstill": round(self.standstill, 1),
            "good": self.good,
        }
