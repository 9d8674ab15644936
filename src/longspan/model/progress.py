"""What long work tells about itself. The command line draws bars; the default says nothing."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """One piece of work after another: start, advance …, finish."""

    def start(self, description: str, total_bytes: int | None) -> None:
        """A piece of work begins; `total_bytes` is None when its size is not known."""

    def advance(self, count: int) -> None:
        """`count` more bytes are done."""

    def finish(self) -> None:
        """The piece of work is over, done or failed."""


class SilentProgress:
    """Says nothing."""

    def start(self, description: str, total_bytes: int | None) -> None:
        pass

    def advance(self, count: int) -> None:
        pass

    def finish(self) -> None:
        pass
