"""How much prefill an iteration may carry while streams decode.

Three rules share one ledger of time. Prefill that joins decode rows may lengthen the iteration by a bounded
multiple of what the decode rows take alone. Prefill without decode rows is cut until its predicted time meets a
target. And over time decoding gets `debt_share` seconds for each second of prefill: the ledger says who is behind.

Every duration is that of the slowest stage.
"""

from __future__ import annotations

from typing import NamedTuple

from longspan.schedule.cost import StageCosts
from longspan.schedule.geometry import Geometry
from longspan.schedule.guard import MixGuard
from longspan.schedule.plan_record import PlanRecord
from longspan.schedule.policy import Policy
from longspan.schedule.span import CopyPrefix, IterationResult

EFFICIENT = 8
"""The fixed cost of joining may be an eighth of what joined prefill takes."""

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
        self.debt = 0.0

    def allowance(self, alone: float, overhead: float) -> float:
        """Seconds that joined prefill may add to decode rows that take `alone` seconds.

        overhead: fixed seconds of joining at all. Much less than EFFICIENT times of it would waste the ring, so
        that much is allowed; who is owed time then decides how often.
        """
        policy = self._policy
        wanted = max(policy.joined_share * alone, EFFICIENT * overhead)
        allowed = min(policy.joined_ceiling, max(policy.joined_floor, wanted))
        if self.debt <= 0:
            return allowed
        return policy.joined_floor if policy.joined_floor >= EFFICIENT * overhead else 0.0

    def join(self, decode: Geometry, start: int, rows: int, now: float) -> Joining:
        """How many of `rows` prefill rows, behind a history of `start`, may join the decode rows."""
        if rows <= 0 or not self.mixes(now):
            return NOTHING_JOINED
        alone = self.costs.predict(decode)
        if not self.costs.trained:
            return Joining(min(rows, self._policy.prefill_floor), alone, self._policy.joined_ceiling)
        allowed = self.allowance(alone, self.costs.predict(decode.joined(start, 1)) - alone)
        if allowed <= 0:
            return Joining(0, alone, 0.0)
        return Joining(self._largest(decode, start, rows, alone + allowed), alone, allowed)

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

        Beside them it waits for their time too; before them the streams wait for one more fixed cost. The prompt
        goes first when its first token gains a larger share of its time than the streams lose of theirs, and the
        streams can bear it: within what joined prefill could add, or when decoding is owed nothing.
        """
        alone = self.costs.predict(decode)
        prompt = self.costs.predict(Geometry().joined(start, rows))
        together = self.costs.predict(decode.joined(start, rows))
        if prompt <= 0 or alone <= 0:
            return False
        if prompt > self._policy.joined_floor and (self.debt > 0 or prompt > self._policy.prefill_target):
            return False
        return (together - prompt) / (waited + prompt) > (prompt + alone - together) / (prompt + alone)

    def prefill_seconds(self, start: int, rows: int, of: int) -> float:
        """Seconds of `rows` prefill rows as a part of an iteration of `of` rows of prefill alone."""
        return self.costs.predict(Geometry().joined(start, of)) * rows / of

    def observe(self, record: PlanRecord, result: IterationResult, now: float) -> float:
        """Learn from a finished iteration; returns the seconds of its slowest stage.

        0 when it teaches nothing: no timings came back, or it copied a prefix.
        """
        geometry = record.geometry
        if any(isinstance(operation, CopyPrefix) for operation in record.iteration.operations):
            return 0.0  # the copy is part of the time, and says nothing about the rows
        seconds = self.costs.observe(geometry, result.timings)
        if seconds <= 0:
            return 0.0
        if geometry.mixed:
            self.guard.mixed_observed(geometry.exact_rows, record.decode_seconds, record.allowance, seconds, now)
        elif geometry.exact_rows:
            self.guard.decode_observed(geometry.exact_rows, seconds)
        self._account(record, seconds)
        return seconds

    def ring_lost(self) -> None:
        """The stages may be others now: start to learn anew."""
        self.costs.forget()
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
        debt = self.debt + share * prefill - (seconds - prefill)
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
