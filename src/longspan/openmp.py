"""How the compute threads of llama.cpp wait for each other."""

from __future__ import annotations

import os

WAITING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000"}
"""A thread that waits for the others of its stage spins for some microseconds, then sleeps.

Threads that spin for long steal the cores of other stages and programs: with two busy neighbours on two cores, the
demo model with two threads makes 16 tokens a second when waiting threads sleep at once, 21 with this count and 8
with 4,000. Without neighbours it makes 50, 64 and 63: a stage meets some 300 barriers a token, and each would cost
a wake-up.
"""


def set_waiting() -> None:
    """Set it for this process and its children, before the library is loaded; what the user has set stays."""
    if not WAITING.keys() & os.environ.keys():
        os.environ.update(WAITING)
