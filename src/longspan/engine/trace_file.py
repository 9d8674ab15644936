"""Writes the trace of planning: one JSON line an iteration."""

from __future__ import annotations

import logging
from pathlib import Path

from longspan.errors import UsageError
from longspan.schedule.trace import TraceRecord, encode_trace

FLUSH_RECORDS = 64

log = logging.getLogger(__name__)


class TraceFile:
    """Appends records to a file, in batches so that a record costs next to nothing."""

    def __init__(self, path: Path) -> None:
        """Start the file afresh. Raises UsageError when it cannot be written."""
        try:
            self._file = path.open("wb")
        except OSError as error:
            raise UsageError(f"the trace file {path} cannot be written: {error.strerror or error}") from None
        self._records: list[TraceRecord] = []

    def add(self, record: TraceRecord) -> None:
        """Take one more record."""
        self._records.append(record)
        if len(self._records) >= FLUSH_RECORDS:
            self.flush()

    def flush(self) -> None:
        """Write what has not been written. A full disk ends the trace, never the requests."""
        records, self._records = self._records, []
        if self._file.closed:
            return
        try:
            self._file.write(encode_trace(records))
            self._file.flush()
        except OSError as error:
            log.warning("the trace ends here: %s", error)
            self._file.close()

    def close(self) -> None:
        """Write the rest and close the file."""
        self.flush()
        self._file.close()
