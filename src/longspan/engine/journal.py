"""What iterations did: the newest ones for those who watch, and all of them for a trace file."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from longspan.engine.trace_file import TraceFile
from longspan.schedule.plan_record import PlanRecord
from longspan.schedule.span import IterationResult
from longspan.schedule.trace import Completion, TraceRecord, trace_record
from longspan.speculate.ledger import Ledger

KEPT = 2048
"""Iterations that are kept for those who watch."""

RoundTrips = Callable[[], Mapping[int, float]]
"""Seconds of the newest ping by stage."""


class Journal:
    """Takes completed iterations as they are, which costs next to nothing; records are made when wanted."""

    def __init__(self, trace: Path | None, round_trips: RoundTrips) -> None:
        """trace: a file to write. Raises UsageError when it cannot be written."""
        self._file = TraceFile(trace) if trace is not None else None
        self._round_trips = round_trips
        self._recent: deque[Completion] = deque(maxlen=KEPT)
        self._unwritten: list[Completion] = []
        self._outcome = (0, 0)

    def note(self, record: PlanRecord, result: IterationResult, now: float, ledger: Ledger | None) -> None:
        """An iteration is back. ledger: of speculation; without it every row is useful."""
        if ledger is None:
            useful, stale = record.geometry.exact_rows, 0
        else:
            before, self._outcome = self._outcome, ledger.outcome
            useful, stale = self._outcome[0] - before[0], self._outcome[1] - before[1]
        completion = Completion(record, result, now, useful, stale)
        self._recent.append(completion)
        if self._file is not None:
            self._unwritten.append(completion)

    def write(self) -> None:
        """Hand what came since the last call to the trace file."""
        if self._file is None or not self._unwritten:
            return
        trips = self._round_trips()
        for completion in self._unwritten:
            self._file.add(trace_record(completion, trips))
        self._unwritten.clear()

    def since(self, moment: float) -> tuple[TraceRecord, ...]:
        """Records of the kept iterations that completed after `moment`, in order."""
        found: list[Completion] = []
        for completion in reversed(self._recent):
            if completion.now <= moment:
                break
            found.append(completion)
        trips = self._round_trips() if found else {}
        return tuple(trace_record(completion, trips) for completion in reversed(found))

    def close(self) -> None:
        """Close the trace file."""
        if self._file is not None:
            self.write()
            self._file.close()
