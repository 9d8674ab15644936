"""Chooses the shape of windows: fixed by hand, or from measured latency, cost and acceptance."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence

from longspan.schedule.span import StageTiming
from longspan.speculate.acceptance import CommonBooks
from longspan.speculate.credits import Credits
from longspan.speculate.depth import PLAIN, Conditions, Shape, ShapeTable, best_shape
from longspan.speculate.head_switch import HeadSwitch
from longspan.speculate.probe import Probe
from longspan.speculate.window_cost import WindowCost
from longspan.speculate.windows import Windows

Cost = Callable[[int, float], float]
"""(rows, positions of history before them) -> seconds of the slowest stage for an iteration; 0: not known yet."""

REFRESH_SECONDS = 0.25
"""How old the conditions may be that shapes are chosen for."""

_LATENCY_SMOOTHING = 0.1
_AS_SLOW = 0.9
_LOAD_SMOOTHING = 0.1
_PROBE_WIDTH = 4
_PLAIN_WIDTH = 1.2
_VARIED = 8
_VARIED_ONE_IN = 4
"""Of windows at least so wide, one in so many is narrower: while all have one width, nothing tells the cost of a
row from that of an iteration, and whoever takes rows for cheap goes on sending many."""
_CERTAIN = (1.0,) * 33
_TABLE_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


class Pace(abc.ABC):
    """The policy of width and depth.

    credits: the pool of rows on a guess. look_ahead: drafts that should wait in a stream before it is judged.
    head_wanted: whether MTP drafts shall be made. head_follows: whether the head keeps in step when not.
    conditions: what shapes are chosen for at present; None until an iteration was measured, and where nothing is.
    """

    def __init__(self, look_ahead: int) -> None:
        self.credits = Credits()
        self.look_ahead = look_ahead
        self.head_wanted = self.head_follows = True
        self.conditions: Conditions | None = None

    def refresh(self, sequences: int, group: int, history: float, now: float) -> None:  # noqa: B027
        """Before rows are dealt: `sequences` decode, `group` of them in one iteration, behind so many positions."""

    def sent(self, windows: int, rows: int) -> None:  # noqa: B027
        """An iteration with so many windows, of so many rows together, goes out."""

    def measured(  # noqa: B027
        self, trip: float, timings: Sequence[StageTiming], rows: int, passes: int
    ) -> None:
        """An iteration of so many rows, in so many passes, came back `trip` seconds after it was sent."""

    def committed(self, tokens: int, *, alone: bool) -> None:  # noqa: B027
        """So many tokens came with an iteration; alone: it had no rows of prompts."""

    def asks(self, now: float) -> bool:
        """Whether proposers need be asked for drafts at all."""
        return True

    @property
    def plain(self) -> bool:
        """Whether hardly any drafts were sent lately."""
        return False

    def drafts_early(self, sequences: int) -> bool:
        """Whether the head shall draft behind the last row of a prompt already, where there are so many."""
        return False

    @abc.abstractmethod
    def shape(self, windows: Windows, now: float) -> Shape:
        """The shape for a sequence whose stream is filled."""


class FixedPace(Pace):
    """The same width and depth for everybody, however many they are: for comparisons."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(2 * width)
        self._shape = Shape(width, depth)

    def shape(self, windows: Windows, now: float) -> Shape:
        return self._shape


class AutoPace(Pace):
    """The shape that gives all sequences together most tokens a second, by prediction."""

    def __init__(self, books: CommonBooks, rows: int, cost: Cost | None = None) -> None:
        """rows: most rows of an iteration with a decode row. cost: None: learned from what is measured."""
        super().__init__(32)
        self.head = HeadSwitch(books)
        self._learned = WindowCost()
        self._cost = self._learned if cost is None else cost
        self._rows = rows
        self._table: ShapeTable | None = None
        self._hopeless = False  # not even certain drafts would pay
        self._link: float | None = None
        self._shares: list[float] = []  # seconds of each stage over those of the slowest
        self._width = 1.0
        self._known_until = -math.inf
        self._shape_probe = Probe()

    def measured(self, trip: float, timings: Sequence[StageTiming], rows: int, passes: int) -> None:
        computed = [timing.finished - timing.started - timing.drafting for timing in timings]
        if not computed or max(computed) <= 0:
            return
        link = max(0.0, trip - sum(timing.finished - timing.received for timing in timings))
        shares = [seconds / max(computed) for seconds in computed]
        if self._link is None:
            self._link = link
        if len(self._shares) != len(shares):
            self._shares = shares
        self._link += _LATENCY_SMOOTHING * (link - self._link)
        self._shares = [
            known + _LATENCY_SMOOTHING * (share - known) for known, share in zip(self._shares, shares, strict=True)
        ]
        self._learned.observe(rows, passes, max(computed))
        self.head.measured(sum(timing.drafting for timing in timings))

    @property
    def plain(self) -> bool:
        return self._width < _PLAIN_WIDTH

    def drafts_early(self, sequences: int) -> bool:
        # All rows of that piece pass the output matrix then, for which others wait. A saved trip is worth that only
        # on a ring that is long for all of them.
        conditions = self.conditions
        return (
            self.head_wanted and conditions is not None and conditions.link > 2 * conditions.seconds[1] * sequences
        )

    def sent(self, windows: int, rows: int) -> None:
        weight = 1 - (1 - _LOAD_SMOOTHING) ** windows
        self._width += weight * (rows / windows - self._width)

    def committed(self, tokens: int, *, alone: bool) -> None:
        self.head.committed(tokens, alone=alone)

    def refresh(self, sequences: int, group: int, history: float, now: float) -> None:
        known = self.conditions
        same = known is not None and (known.sequences, known.group) == (sequences, group)
        if (same and now < self._known_until) or self._link is None:
            return
        seconds = self._seconds(history)
        if seconds is None:
            return
        self._known_until = now + REFRESH_SECONDS
        bare = Conditions(
            seconds, sum(self._shares), self._link, self._rows, sequences, group, behind=self._behind()
        )
        self.head_wanted = self.head.decide(bare, now)
        self.head_follows = self.head.follows
        conditions = self.head.with_drafts(bare) if self.head_wanted else bare
        if known is None or not known.resembles(conditions):
            self.conditions = self.credits.conditions = conditions
            self._table = ShapeTable(conditions)
            self._hopeless = best_shape(_CERTAIN, bare, len(_CERTAIN) - 1, open_ended=True) is PLAIN

    def asks(self, now: float) -> bool:
        return not self._hopeless or self._shape_probe.near(now)

    def shape(self, windows: Windows, now: float) -> Shape:
        chances = windows.chances
        if self._table is None or not chances:
            return PLAIN
        sequence = windows.sequence
        remaining = sequence.token_limit - len(sequence.tokens)
        conditions = self._table.conditions
        others = 1.0
        if conditions.sequences > 1:
            others = (conditions.sequences * self._width - windows.width) / (conditions.sequences - 1)
            others = (1 + others) / 2  # half way: all of it, and nobody would be the first to get narrower
        shape = self._table.shape(
            chances,
            others=others,
            open_ended=windows.open_ended,
            flowing=windows.in_flight > 0,
            remaining=remaining,
        )
        if shape is not PLAIN:
            self._shape_probe.reset()
        elif self._shape_probe.due(now):
            return Shape(min(_PROBE_WIDTH, len(chances) + 1), 1)
        if shape.width >= _VARIED and windows.sent_windows % _VARIED_ONE_IN == _VARIED_ONE_IN - 1:
            return shape._replace(width=shape.width - shape.width // 4)
        return shape

    def _behind(self) -> float:
        """Seconds of the stages behind the slowest, or the first that is nearly so slow, over the slowest's."""
        slowest = next(index for index, share in enumerate(self._shares) if share >= _AS_SLOW * max(self._shares))
        return sum(self._shares[slowest + 1 :])

    def _seconds(self, history: float) -> list[float] | None:
        """Seconds for 0, 1, 2, … rows; None when the cost is not known yet."""
        points = [rows for rows in _TABLE_ROWS if rows <= max(2, self._rows)]
        costs = [self._cost(rows, history) for rows in points]
        if costs[0] <= 0:
            return None
        table = [max(0.0, 2 * costs[0] - costs[1]), costs[0]]
        for low, high, before, after in zip(points, points[1:], costs, costs[1:], strict=False):
            step = max(0.0, after - before) / (high - low)  # more rows are never predicted to take less time
            table += [table[-1] + step * count for count in range(1, high - low + 1)]
        return table
