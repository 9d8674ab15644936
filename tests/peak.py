"""How much memory something takes at most."""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def peak_below(limit: int) -> Iterator[None]:
    """Fail when this process held more bytes than `limit` beyond what it had held before the block."""
    before = _highest()
    yield
    more = _highest() - before
    assert more < limit, f"{more >> 20} MiB more at once, at most {limit >> 20} were expected"


def _highest() -> int:
    """The most bytes that this process ever held."""
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return highest if sys.platform == "darwin" else highest << 10
