"""Reads the trace file of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from longspan.errors import UsageError
from longspan.schedule.trace import TraceRecord, decode_trace


def read_trace(path: Path) -> Iterator[TraceRecord]:
    """Records of a trace file, one after the other.

    Raises UsageError when the file cannot be read or a line is not a record; the message names the line.
    """
    try:
        with path.open("rb") as lines:
            yield from decode_trace(lines, str(path))
    except OSError as error:
        raise UsageError(f"the trace {path} cannot be read: {error.strerror or error}") from error
