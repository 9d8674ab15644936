"""How wide a sequence's windows should be, and how many should be in flight.

A run goes from one divergence to the next. Its windows of w rows leave one turn apart; it ends when the window with
the wrong draft is back, one trip after that left. With s_k the chance that the first k drafts are right,

    tokens of a run  = 1 + sum_k s_k
    seconds of a run = trip + turn * sum_j s_(j w) + what a refill waits behind rows that are void

by renewal; with one window at a time it is sum_(k < w) s_k tokens a trip. While windows of the sequence are on
their way already, nothing waits for the stages before the slowest one, which have time to spare. A turn is what the
slowest stage takes to serve every sequence once; when that is longer than a trip around the ring, it takes its
place. Wider windows share the fixed cost of an iteration, narrower ones come back sooner, so the best width is
inside: for one sequence about sqrt(fixed cost * tokens of a run / cost of a row). The other sequences are taken to
do the same, or what they do when that is more: then nobody gains by rows that all together would lose by, and
nobody falls behind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

WIDTHS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
MAX_DEPTH = 16

TAILS = (192, 96, 48, 24, 0)
"""Drafts by which a stream is taken to go on beyond those that it has, as windows come back: what may be needed."""

MARGIN = 0.05
MARGIN_BESIDE_OTHERS = 0.2
"""What drafts must be predicted to gain before they are sent at all: with a crowd there is less to gain, and what
stages that are busy at the same time take is known less well."""

CLOSE = 0.02
CLOSE_BESIDE_OTHERS = 0.03
"""Shapes whose predicted rates differ by less are equally good, and the narrowest is taken: others wait for it."""

_RESEMBLANCE = 0.04
_RESEMBLANCE_BESIDE_OTHERS = 0.1
"""Shares by which conditions may differ before shapes are found anew. For a crowd that is dear: all wait for it."""


class Shape(NamedTuple):
    """width: rows of a window. depth: windows in flight. gain: predicted rate over that of plain decoding.

    rate: predicted tokens a second of all sequences together; 0: not predicted.
    """

    width: int
    depth: int
    gain: float = 1.0
    rate: float = 0.0


PLAIN = Shape(1, 1)


class Conditions(NamedTuple):
    """What the ring is like now.

    seconds: of the slowest stage for an iteration of 0, 1, 2, … rows. spread: seconds of all stages over those of
    the slowest. behind: seconds of the stages behind the slowest, over those of the slowest. link: seconds of a
    trip outside the stages. rows: most rows of an iteration. sequences: that decode. group: sequences whose windows
    share an iteration. others: rows of a window of another sequence.
    """

    seconds: Sequence[float]
    spread: float
    link: float
    rows: int
    sequences: int = 1
    group: int = 1
    others: float = 1.0
    behind: float = 0.0

    def cost(self, rows: float) -> float:
        """Seconds of the slowest stage, interpolated, and continued beyond the table."""
        table = self.seconds
        low = min(int(rows), len(table) - 2)
        return table[low] + (rows - low) * (table[low + 1] - table[low])

    def cost_of_passes(self, passes: int, rows: int) -> float:
        """Seconds of the slowest stage when the rows go through the layers in so many passes."""
        return (passes - 1) * self.cost(1) + self.cost(rows - passes + 1)

    def iteration(self, width: float) -> float:
        """Seconds of the slowest stage for a window with those of its group.

        Between iterations of others that take longer, a shorter one only waits.
        """
        other = max(width, self.others)
        if self.sequences > self.group:
            return self.cost(self.group * other)
        return self.cost(width + (self.group - 1) * other)

    def trip(self, width: float) -> float:
        """Seconds until a window is back when nothing is in its way."""
        return self.link + self.spread * self.iteration(width)

    def hidden(self, width: float) -> float:
        """Seconds of `trip` for which nobody waits when other windows of the sequence are in flight.

        At most half of what it takes besides the slowest stage: the last windows are waited for in any case.
        """
        besides = self.spread - 1
        return (besides - max(self.behind, besides / 2)) * self.iteration(width)

    def turn(self, width: float) -> float:
        """Seconds of the slowest stage until every sequence had its window."""
        return self.iteration(width) * self.sequences / self.group

    def resembles(self, other: Conditions) -> bool:
        """True when the other's shapes would hardly be different."""
        share = _RESEMBLANCE if self.sequences == 1 else _RESEMBLANCE_BESIDE_OTHERS
        return (
            (self.sequences, self.group) == (other.sequences, other.group)
            and abs(self.trip(1) - other.trip(1)) < share * self.trip(1)
            and abs(self.seconds[1] - other.seconds[1]) < share * self.seconds[1]
            and abs(self.seconds[-1] - other.seconds[-1]) < share * self.seconds[-1]
        )

    @property
    def widest(self) -> int:
        """Widest windows that the sequences of a group can have together."""
        return max(1, self.rows // self.group)


def margin(sequences: int) -> float:
    """What drafts must be predicted to gain, as a share, when so many sequences decode."""
    return MARGIN if sequences == 1 else MARGIN_BESIDE_OTHERS


def survival_of(chances: Sequence[float], limit: int) -> list[float]:
    """s_0 = 1, s_1, …: the chance that the first k drafts are all right; at most `limit` drafts."""
    return [1.0, *accumulate(chances[:limit], mul)]


def best_shape(
    survival: Sequence[float], conditions: Conditions, drafts: int, *, open_ended: bool, flowing: bool = False
) -> Shape:
    """The shape with the highest predicted tokens a second; PLAIN if none gains enough.

    survival: s_0 = 1, s_1, … of the drafts that there are or will be. drafts: how many there are now. open_ended:
    while these are in flight, more can follow. flowing: windows of this sequence are in flight already.
    """
    if drafts < 1:
        return PLAIN
    run = _Run(survival, None if open_ended else drafts, flowing=flowing)
    widths = sorted({*(width for width in WIDTHS if width <= drafts), drafts + 1})
    widths = [width for width in widths if width <= conditions.widest]
    alike = conditions._replace(others=1.0)
    plain = 1 / max(alike.trip(1), alike.turn(1))
    rates = run.rates(widths, alike)
    best = max(map(max, rates.values()), default=0.0)
    if best < plain * (1 + margin(conditions.sequences)):
        return PLAIN
    gain = best / plain
    if conditions.others > 1:
        rates = run.rates(widths, conditions)
        best = max(map(max, rates.values()))
    enough = best * (1 - (CLOSE if conditions.sequences == 1 else CLOSE_BESIDE_OTHERS))
    width = next(width for width, pair in rates.items() if max(pair) >= enough)
    depth = 1
    if rates[width][0] < enough:
        depth = min(MAX_DEPTH, math.ceil(conditions.trip(width) / conditions.cost(width)))
    return Shape(width, depth, gain, best * conditions.sequences)


class _Run:
    """The tokens from one divergence to the next."""

    def __init__(self, survival: Sequence[float], drafts: int | None, *, flowing: bool) -> None:
        """drafts: how many the sequence has at a time; None: as many as it wants. flowing: see `best_shape`."""
        self._survival = survival
        self._drafts = drafts
        self._flowing = flowing

    def rates(self, widths: Sequence[int], conditions: Conditions) -> dict[int, tuple[float, float]]:
        """For each width, the tokens a second with one window at a time, and with several."""
        turns = conditions.sequences / conditions.group
        found = {}
        for width in widths:
            seconds = conditions.iteration(width)
            turn = turns * seconds
            trip = max(conditions.link + conditions.spread * seconds, turn)
            # One window at a time is drafted anew when it is back.
            alone = sum(self._survival[:width]) / trip
            if self._flowing:
                trip = max(trip - conditions.hidden(width), turn)
            own = conditions.cost(width * conditions.group)
            if self._drafts is None:
                piped = _piped(self._survival, width, trip, max(turn, trip / MAX_DEPTH), own)
            else:
                piped = self._piped_in_bursts(self._drafts + 1, width, trip, turn, own)
            found[width] = (alone, piped)
        return found

    def _piped_in_bursts(self, rows: int, width: int, trip: float, turn: float, own: float) -> float:
        """As `_piped`, when at most `rows` rows can be in flight.

        The better of two: all of them are sent, and the next when they are back; or evenly, as windows come back.
        """
        burst = self._survival[:rows]
        # The others' drafts end too; what they leave of the stage's time makes a turn shorter.
        taken = (turn - own) * math.ceil(rows / width) / (trip + turn * sum(burst[width::width]))
        shorter = min(turn, own / (1 - taken)) if taken < 1 else turn
        evenly = max(turn, trip * width / rows)
        return max(_piped(burst, width, trip, shorter, own), _piped(self._survival, width, trip, evenly, own))


def _piped(survival: Sequence[float], width: int, trip: float, between: float, own: float) -> float:
    """Tokens a second with windows that leave `between` seconds apart, until the drafts end."""
    void = (1 - survival[-1]) * own / 2 if len(survival) > width else 0.0
    return sum(survival) / (trip + void + between * sum(survival[width::width]))


class ShapeTable:
    """The best shapes under given conditions, found once for each class of survival.

    A class is the number of drafts and the expected tokens of a run, both roughly; its survival is taken to fall by
    the same factor with each draft.
    """

    def __init__(self, conditions: Conditions) -> None:
        self.conditions = conditions
        self._shapes: dict[tuple[int, bool, bool, int, int, int], Shape] = {}

    def shape(
        self, chances: Sequence[float], *, others: float, open_ended: bool, flowing: bool, remaining: int
    ) -> Shape:
        """The shape for a stream.

        chances: of each draft, that it is right when those before it are. others: rows of a window of another
        sequence. open_ended: more drafts, as good as the last, can follow at once. flowing: some of its windows are
        in flight. remaining: tokens that the sequence may still get.
        """
        drafts = _COUNTED[min(len(chances), remaining - 1, _MOST_COUNTED)]
        if not drafts:
            return PLAIN
        tokens = sum(accumulate(chances[:drafts], mul))
        tail = next(tail for tail in TAILS if tail < remaining - drafts)
        steps = _STEPS if self.conditions.sequences == 1 else _STEPS_BESIDE_OTHERS
        key = (
            drafts,
            open_ended,
            flowing,
            round(steps * math.log2(1 + tokens)),
            tail,
            round(2 * math.log2(max(1.0, others))),
        )
        found = self._shapes.get(key)
        if found is None:
            chance = _chance(drafts, 2 ** (key[3] / steps) - 1)
            survival = [chance**count for count in range(drafts + 1 + tail)]
            conditions = self.conditions._replace(others=2 ** (key[5] / 2))
            found = self._shapes[key] = best_shape(
                survival, conditions, drafts, open_ended=open_ended, flowing=flowing
            )
        return found


_STEPS, _STEPS_BESIDE_OTHERS = 12, 4
"""Classes of expected tokens for each doubling."""

_MOST_COUNTED = 48
_CLASSES = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, _MOST_COUNTED)
_COUNTED = [max(size for size in _CLASSES if size <= drafts) for drafts in range(_MOST_COUNTED + 1)]
"""How many of so many drafts are looked at."""


def _chance(drafts: int, tokens: float) -> float:
    """The a in [0, 1) for which a + a^2 + … + a^drafts = tokens."""
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        if middle * (1 - middle**drafts) / (1 - middle) < tokens:
            low = middle
        else:
            high = middle
    return low
