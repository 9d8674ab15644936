"""Which of the ready sequences decode together, where several iterations with decode rows are on their way.

llama.cpp takes the rows of consecutive slots through the layers together, others one after the other: on the demo's
last stage four rows took 26 ms together and 45 ms in two pieces. Sequences that once left together come back
together, whoever they are, so chance would decide. So the slots are dealt to lanes in their order, and who came
back with another lane waits for the rest of its own, once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_AT_ONCE = 4


def lane_size(sequences: int, lanes: int) -> int:
    """Sequences of a lane: as many in each, but in fours where there are more than two.

    The library's kernels for a CPU take four rows at once and others singly: on the demo's last stage three rows
    took 46 ms and four 36. Where further rows are free, uneven lanes cost nothing.
    """
    size = math.ceil(sequences / lanes)
    return size if lanes == 1 or size <= _AT_ONCE // 2 else math.ceil(size / _AT_ONCE) * _AT_ONCE


def lane(
    ready: Sequence[int], coming: Sequence[int], size: int, cursor: int, ahead: Sequence[int] = ()
) -> list[int]:
    """The ready slots that go out together now; empty when all wait for the rest of their lanes.

    ready, coming: slots, ascending, of sequences that could go and of those that are worth waiting for. size: of a
    lane. cursor: slot from which on lanes have their turn. ahead: slots of sequences that keep their place in a
    lane, but nobody waits for them. A lane whose greater part is still on its way is waited for.
    """
    order = sorted([*ready, *coming, *ahead])
    going, waited = set(ready), set(coming)
    found: list[int] = []
    for first in range(0, len(order), size):
        members = order[first : first + size]
        here = [slot for slot in members if slot in going]
        awaited = sum(slot in waited for slot in members)
        if len(here) > awaited and (not found or found[0] < cursor <= here[0]):
            found = here
    return found
