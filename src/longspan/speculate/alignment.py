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
"""What windows of several rows must be predicted to gain for all who leave together, and once more as much where
the slowest stage is always busy. While those with drafts gain, the others only wait; and when those are done
sooner, an iteration of three takes no less time than one of four."""


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
    plain = [0] * len(wishes)
    busy = min(1.0, conditions.turn(1) / conditions.trip(1))
    enough = _rate(wishes, plain, conditions) * (1 + MARGIN * (1 + busy))
    best, found = enough, plain
    options = [[min(count, len(wish.survival)) for wish in wishes] for count in sorted({*wished} - {0})]
    for option in (*options, wished):
        rate = _rate(wishes, option, conditions)
        if rate > best:
            best, found = rate, option
    return found


def _rate(wishes: Sequence[Wish], drafts: Sequence[int], conditions: Conditions) -> float:
    """Tokens a second of these sequences, when the others take as long for theirs."""
    tokens = len(wishes) + sum(
        sum(wish.survival[:count]) for wish, count in zip(wishes, drafts, strict=True) if count
    )
    blocks = sorted(Block(wish.slot, 1, 1 + count, 0) for wish, count in zip(wishes, drafts, strict=True))
    seconds = conditions.cost_of_passes(count_passes(blocks).number, len(wishes) + sum(drafts))
    turn = seconds * max(1.0, conditions.sequences / len(wishes))
    return tokens / max(conditions.link + conditions.spread * seconds, turn)
