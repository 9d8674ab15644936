"""Times calls of functions that others own, while a measurement runs."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple


class Watched(NamedTuple):
    """A function to time: attribute `name` of a class or module. part: what its time counts for."""

    part: str
    owner: Any
    name: str


class Stopwatch:
    """Seconds and calls by part, from any thread. A call within a call of the same part counts once."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self._lock = threading.Lock()
        self._inside = threading.local()

    @contextlib.contextmanager
    def watching(self, functions: Sequence[Watched]) -> Iterator[None]:
        """Time these functions until the block ends; then they are as they were."""
        with contextlib.ExitStack() as stack:
            for watched in functions:
                original = getattr(watched.owner, watched.name)
                setattr(watched.owner, watched.name, self._timed(watched.part, original))
                stack.callback(setattr, watched.owner, watched.name, original)
            yield

    def reset(self) -> None:
        """Forget all that was counted."""
        with self._lock:
            self.seconds.clear()
            self.calls.clear()

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            inside: set[str] = self._inside.__dict__.setdefault("parts", set())
            if part in inside:
                return function(*arguments, **named)
            inside.add(part)
            started = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                seconds = time.perf_counter() - started
                inside.discard(part)
                with self._lock:
                    self.seconds[part] = self.seconds.get(part, 0.0) + seconds
                    self.calls[part] = self.calls.get(part, 0) + 1

        return timed
