"""How the compute threads of llama.cpp wait for each other."""

from __future__ import annotations

import os

_POLICY, _SPINS = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"
VARIABLES = (_POLICY, _SPINS)

SPINS_ALONE, SPINS_BESIDE_OTHERS = 100_000, 1_000
"""Rounds that a thread waits for the others of its stage before it sleeps.

A stage meets some 300 barriers a token, and each sleep costs a wake-up. Measured on two cores, one stage of the
demo model (as Q4_0) with two threads, one request, tokens a second in one run of alternating arms: 61 with 1,000
rounds, 72 with 10,000, 79 with 100,000. But threads that wait like that steal the cores of other stages: with two
busy neighbours on the same two cores (as Q4_1) 21 with 1,000 rounds and 8 with 4,000.
"""


def set_waiting(*, stages_here: int = 1) -> None:
    """Set it for this process and its children, before the library is loaded; what the user has set stays.

    stages_here: stages that share this machine.
    """
    if not any(name in os.environ for name in VARIABLES):
        spins = SPINS_ALONE if stages_here == 1 else SPINS_BESIDE_OTHERS
        os.environ.update({_POLICY: "passive", _SPINS: str(spins)})
