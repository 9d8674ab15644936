"""How wide the windows are that leave together.

One pass over the layers takes as many rows of each sequence as the shortest window has left; what others have
beyond that takes a pass of its own, for which all wait. So what pays for one sequence alone may not pay among
others, and what hardly pays for one costs hardly anything when all have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from longspan.schedule.passes import Block, count_passes
from longspan.speculate.depth import Conditions

MARGIN = 0.25
"""What windows of several rows must be predicted to gain for all who leave together: while those with drafts gain,
their neighbours only wait, and when those are done sooner, an iteration of three takes no less time than one of
four."""


class Wish(NamedTuple):
    """What the next window of a sequence could be.

    survival: of each draft that there is, the chance that it and all before it are right. drafts: how many of them
    the sequence would send if it had not to wait for others.
    """

    slot: int
    survival: Sequence[float]
    drafts: int


def aligned(wishes: Sequence[Wish], conditions: Conditions) -> list[int]:
    """How many drafts each sends so that all together get most tokens a second; in the order of `wishes`.

    Compared are what each wishes, no drafts at all, and the same number for all who have them, for each number that
    one of them wishes.
    """
    wished = [wish.drafts for wish in wishes]
    if not any(wished) or len(wishes) == 1:
        return wished
    none = [0] * len(wishes)
    usual = _period(wishes, none, conditions)
    best = len(wishes) / usual * (1 + MARGIN)
    found = none
    options = [[min(count, len(wish.survival)) for wish in wishes] for count in sorted({*wished} - {0})]
    for option in (*options, wished):
        rate = _rate(wishes, option, conditions, usual)
        if rate > best:
            best, found = rate, option
    return found


def _period(wishes: Sequence[Wish], drafts: Sequence[int], conditions: Conditions) -> float:
    """Seconds from one row of a sequence to the next, when those of other lanes send one row each."""
    blocks = sorted(Block(wish.slot, 1, 1 + count, 0) for wish, count in zip(wishes, drafts, strict=True))
    seconds = conditions.cost_of_passes(count_passes(blocks).number, len(wishes) + sum(drafts))
    others = conditions.turn(1) * max(0.0, 1 - len(wishes) / conditions.sequences)
    return max(conditions.link + conditions.spread * seconds, seconds + others)


def _rate(wishes: Sequence[Wish], drafts: Sequence[int], conditions: Conditions, usual: float) -> float:
    """Tokens a second of these sequences, less those that the others lose.

    usual: seconds from one row of a sequence to the next without drafts. While a wide iteration is on one stage,
    the others have only short ones to do, and wait. So those of other lanes lose what a round gets longer, as far
    as the slowest stage is busy.
    """
    tokens = len(wishes) + sum(
        sum(wish.survival[:count]) for wish, count in zip(wishes, drafts, strict=True) if count
    )
    period = max(usual, _period(wishes, drafts, conditions))
    busy = min(1.0, conditions.turn(1) / conditions.trip(1))
    others = max(0, conditions.sequences - len(wishes))
    return tokens / period - busy * others * (1 / usual - 1 / period)
