"""What a person sees of long work: bars and one changing line on a terminal, plain lines elsewhere.

All of it goes to the standard error stream, so that results can be piped on.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


class ProgressBars:
    """A bar for each piece of work, with size, rate and time left. Fulfils `longspan.model.progress.Progress`."""

    def __init__(self) -> None:
        self._bars: RichProgress | None = None
        self._task: TaskID | None = None

    def start(self, description: str, total_bytes: int | None) -> None:
        """Show a bar; off a terminal, say in one line what begins."""
        if not sys.stderr.isatty():
            print(f"{description} …", file=sys.stderr, flush=True)
            return
        from rich import progress
        from rich.console import Console

        self._bars = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.DownloadColumn(binary_units=True),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bars.add_task(description, total=total_bytes)
        self._bars.start()

    def advance(self, count: int) -> None:
        """`count` more bytes are done."""
        if self._bars is not None and self._task is not None:
            self._bars.advance(self._task, count)

    def finish(self) -> None:
        """Take the bar away."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = self._task = None


class CountBar:
    """A bar that counts finished pieces of work, with time left; off a terminal a line for each tenth.

    total: None when nobody knows it yet.
    """

    def __init__(self, description: str, total: int | None) -> None:
        self._description = description
        self._total = total
        self._done = 0
        self._bar: RichProgress | None = None
        if sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TextColumn("{task.fields[note]}"),
                progress.TimeRemainingColumn(compact=True),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(description, total=total, note="")
            self._bar.start()

    def advance(self, note: str) -> None:
        """One more is done. note: a few words about how it goes."""
        self._done += 1
        if self._bar is not None:
            self._bar.update(self._task, advance=1, note=note)
        elif self._total and self._done * 10 // self._total > (self._done - 1) * 10 // self._total:
            print(f"{self._description}: {self._done} of {self._total}, {note}", file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()


@contextlib.contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """A function that shows what is being done now; from any thread.

    On a terminal a line with a spinner that is gone afterwards; elsewhere a line for each text.
    """
    if sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status("starting") as status:
            yield lambda text: status.update(text)
    else:
        lock = threading.Lock()

        def show(text: str) -> None:
            with lock:
                print(text, file=sys.stderr, flush=True)

        yield show
