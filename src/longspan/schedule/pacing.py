"""How much prefill an iteration may carry while streams decode.

Where running prefill and decode rows together costs no more than one after the other, prefill joins the decode rows
and may lengthen their iteration by a bounded multiple of what they take alone. Where it costs more, both alternate,
in pieces of the same size. Either way a piece is large enough that its fixed cost does not count, and a ledger of
time says who is behind: over time decoding gets `debt_share` seconds for each second of prefill.

Every duration is that of the slowest stage.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from longspan.schedule.cost import StageCosts
from longspan.schedule.geometry import Geometry
from longspan.schedule.guard import MixGuard
from longspan.schedule.plan_record import PlanRecord
from longspan.schedule.policy import Policy
from longspan.schedule.returns import Pause, Returns
from longspan.schedule.span import CopyPrefix, IterationResult

EFFICIENT = 30
"""The fixed cost of a piece of prefill may be so small a part of it: what is more is lost to every prompt."""

NOT_LARGER = 1.25
"""Two predicted fixed costs count as equal up to this ratio."""

ENOUGH = 20
"""Mixed iterations that must have been measured before joining is judged not to pay."""

PROBE_SECONDS = 60.0
"""Where joining does not pay, it is tried again after this time: predictions may have become wrong."""

WORTH = 4
"""A piece of prefill that fills a pause of the stages must be so many times as long as its fixed cost."""

_REFINEMENTS = 4
_CLOSE = 0.9


class Joining(NamedTuple):
    """Prefill rows that may join decode rows, the seconds of these alone, and the seconds that may be added."""

    rows: int
    decode_seconds: float
    allowance: float


NOTHING_JOINED = Joining(0, 0.0, 0.0)


class Pacing:
    """Turns predicted and measured time into rows."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.costs = StageCosts(policy.cost_model)
        self.guard = MixGuard(policy)
        self.returns = Returns()
        self.debt = 0.0
        self._joined_at = -math.inf
        self._mixed_seen = 0

    def joining_pays(self, decode: Geometry, start: int, now: float) -> bool:
        """True when prefill should run beside these decode rows and not in an iteration of its own.

        It should when its fixed cost is not larger there, or when that was not tried for long.
        """
        if not self.mixes(now):
            return False
        if self._mixed_seen < ENOUGH or now - self._joined_at > PROBE_SECONDS:
            return True
        beside = self._overhead(decode, start) - self.costs.predict(decode)
        return beside <= NOT_LARGER * self._overhead(Geometry(), start)

    def joined(self, now: float) -> None:
        """A mixed iteration is on its way."""
        self._joined_at = now
        self.guard.mixed_planned(now)

    def allowance(self, alone: float, overhead: float) -> float:
        """Seconds of prefill that may join decode rows which take `alone` seconds; overhead: of joining at all."""
        allowed = self._piece(alone, overhead)
        if self.debt <= 0:
            return min(self._policy.joined_ceiling, allowed)
        floor = self._policy.joined_floor
        return floor if floor >= EFFICIENT * overhead else 0.0

    def _piece(self, alone: float, overhead: float) -> float:
        """Seconds that a piece of prefill may delay streams by, whose decode rows take `alone` seconds."""
        policy = self._policy
        wanted = min(policy.joined_ceiling, max(policy.joined_floor, policy.joined_share * alone))
        return min(policy.prefill_target, max(wanted, EFFICIENT * overhead))

    def join(self, decode: Geometry, start: int, rows: int, now: float) -> Joining:
        """How many of `rows` prefill rows, behind a history of `start`, may join the decode rows."""
        if rows <= 0 or not self.joining_pays(decode, start, now):
            return NOTHING_JOINED
        alone = self.costs.predict(decode)
        if not self.costs.trained:
            return Joining(min(rows, self._policy.prefill_floor), alone, self._policy.joined_ceiling)
        allowed = self.allowance(alone, self._overhead(decode, start) - alone)
        if allowed <= 0:
            return Joining(0, alone, 0.0)
        return Joining(self._largest(decode, start, rows, alone + allowed), alone, allowed)

    def join_whole(self, decode: Geometry, rows: int) -> Joining:
        """All rows may join: of a replay after the loss of a ring.

        Every stream stood still then, and nothing is known of the new ring. Those that go on already wait a little
        longer for each token until the last one does too.
        """
        return Joining(rows, self.costs.predict(decode), self._policy.prefill_target)

    def turn_rows(self, decode: Geometry, start: int, rows: int) -> int:
        """How many of `rows` prefill rows may run without decode rows while streams wait that take `decode`."""
        if not self._policy.mixing or not self.costs.trained:
            return self.prefill_rows(start, rows, contended=True)
        piece = self._piece(self.costs.predict(decode), self._overhead(Geometry(), start))
        return max(1, self._largest(Geometry(), start, rows, piece))

    def pause_rows(self, decode: Geometry, start: int, rows: int, pause: Pause, now: float) -> int:
        """How many of `rows` rows may run while every stream's next row is on its way through the ring.

        decode: these rows, as they will come back. 0: wait for them, because they are owed time, or because joining
        them costs less, and the pause is too short for anything.
        """
        if not self.costs.trained:
            return self.turn_rows(decode, start, rows)
        worth = WORTH * self._overhead(Geometry(), start)
        if self.debt > 0:
            return self._largest(Geometry(), start, rows, pause.spare) if pause.spare >= worth else 0
        if pause.back < worth and self.joining_pays(decode, start, now):
            return 0
        return self.turn_rows(decode, start, rows)

    def _overhead(self, decode: Geometry, start: int) -> float:
        """Predicted seconds of the decode rows with a prefill span of no rows: the fixed cost of starting one."""
        one, two = (self.costs.predict(decode.joined(start, rows)) for rows in (1, 2))
        return 2 * one - two

    def prefill_rows(self, start: int, rows: int, contended: bool) -> int:
        """How many of `rows` prefill rows an iteration without decode rows may have.

        Contended: a stream decodes, or another prompt could use the time. Then the rows are halved until the target
        holds, down to the floor.
        """
        policy = self._policy
        if not contended or not self.costs.trained:
            return rows
        allowed = rows
        empty = Geometry()
        while allowed > policy.prefill_floor and self._over_target(empty.joined(start, allowed)):
            allowed = max(policy.prefill_floor, allowed // 2)
        return allowed

    def mixes(self, now: float) -> bool:
        """True when prefill rows may join decode rows."""
        return self._policy.mixing and self.guard.allows(now)

    def prefill_is_behind(self, geometry: Geometry) -> bool:
        """True when joined prefill fell behind its share of time by at least an iteration of this geometry."""
        share = self._policy.debt_share
        if share > 0 and self.debt >= 0:
            return False
        owed = share * self.costs.predict(geometry)
        return self.debt <= -owed and (owed > 0 or share == 0)

    def short_prompt_first(self, decode: Geometry, start: int, rows: int, waited: float) -> bool:
        """True when a prompt that ends in one iteration should run before the decode rows instead of beside them.

        Beside them it waits for their time too, once for each piece that it is cut into there; before them the
        streams wait for one more fixed cost. The prompt goes first when its first token gains a larger share of its
        time than the streams lose of theirs, and the streams can bear it: within what joined prefill could add, or
        when decoding is owed nothing.
        """
        alone = self.costs.predict(decode)
        prompt = self.costs.predict(Geometry().joined(start, rows))
        together = self.costs.predict(decode.joined(start, rows))
        if prompt <= 0 or alone <= 0:
            return False
        if prompt > self._policy.joined_floor and (self.debt > 0 or prompt > self._policy.prefill_target):
            return False
        overhead = self._overhead(decode, start) - alone
        beside = self._largest(decode, start, rows, alone + self._piece(alone, overhead))
        pieces = math.ceil(rows / max(1, beside))
        gained = together + (pieces - 1) * alone - prompt
        lost = prompt + alone - together - (pieces - 1) * overhead
        return gained / (waited + prompt) > lost / (prompt + alone)

    def prefill_seconds(self, start: int, rows: int, of: int) -> float:
        """Seconds of `rows` prefill rows as a part of an iteration of `of` rows of prefill alone."""
        return self.costs.predict(Geometry().joined(start, of)) * rows / of

    def observe(self, record: PlanRecord, result: IterationResult, now: float) -> float:
        """Learn from a finished iteration; returns the seconds of its slowest stage.

        0 when it teaches nothing: no timings came back, or it copied a prefix.
        """
        geometry = record.geometry
        self.returns.measured(now - record.planned_at, result.timings)
        if any(isinstance(operation, CopyPrefix) for operation in record.iteration.operations):
            return 0.0  # the copy is part of the time, and says nothing about the rows
        seconds = self.costs.observe(geometry, result.timings)
        if seconds <= 0:
            return 0.0
        if geometry.mixed:
            self._mixed_seen += 1
            self.guard.mixed_observed(geometry.exact_rows, record.decode_seconds, record.allowance, seconds, now)
        elif geometry.exact_rows:
            self.guard.decode_observed(geometry.exact_rows, seconds)
        self._account(record, seconds)
        return seconds

    def ring_lost(self) -> None:
        """The stages may be others now: start to learn anew."""
        self.costs.forget()
        self.returns.forget()
        self._mixed_seen = 0
        self.guard.ring_lost()
        self.debt = 0.0

    def _account(self, record: PlanRecord, seconds: float) -> None:
        geometry = record.geometry
        if not record.streams:
            return
        prefill = 0.0 if geometry.exact_rows else seconds
        if geometry.mixed:
            prefill = min(seconds, record.prefill_seconds)
        share = self._policy.debt_share
        bound = share * self._policy.prefill_target
        # Where more prompts wait for prefill than streams wait for their next token, less is owed to the streams.
        owed = share * min(1.0, record.streams / max(1, record.prompts))
        debt = self.debt + owed * prefill - (seconds - prefill)
        floor = -bound if record.prefill_cut else 0.0  # prefill gathers no credit while it wants nothing
        self.debt = min(bound, max(floor, debt))

    def _over_target(self, geometry: Geometry) -> bool:
        return self.costs.predict(geometry) > self._policy.prefill_target

    def _largest(self, decode: Geometry, start: int, rows: int, limit: float) -> int:
        """Most rows whose joined iteration is predicted within `limit`; cost is close to linear."""
        high, high_seconds = rows, self.costs.predict(decode.joined(start, rows))
        if high_seconds <= limit:
            return rows
        low, low_seconds = 1, self.costs.predict(decode.joined(start, 1))
        if low_seconds > limit:
            return 0
        for _ in range(_REFINEMENTS):
            share = (limit - low_seconds) / (high_seconds - low_seconds)
            middle = min(high - 1, low + int(share * (high - low)))
            if middle <= low:
                break
            seconds = self.costs.predict(decode.joined(start, middle))
            if seconds > limit:
                high, high_seconds = middle, seconds
            else:
                low, low_seconds = middle, seconds
                if seconds >= _CLOSE * limit:
                    break
        return low
