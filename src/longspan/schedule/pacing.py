"""How much prefill an iteration may carry while streams decode.

Three rules share one ledger of time. Prefill that joins decode rows may lengthen the iteration by a bounded
multiple of what the decode rows take alone. Prefill without decode rows is cut until its predicted time meets a
target. And over time decoding gets `debt_share` seconds for each second of prefill: the ledger says who is behind.

Every duration is that of the slowest stage.
"""

from __future__ import annotations

from longspan.schedule.cost import StageCosts
from longspan.schedule.geometry import Geometry
from longspan.schedule.guard import MixGuard
from longspan.schedule.plan_record import PlanRecord
from longspan.schedule.policy import Policy
from longspan.schedule.span import IterationResult

_REFINEMENTS = 4
_CLOSE = 0.9


class Pacing:
    """Turns predicted and measured time into rows."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.costs = StageCosts(policy.cost_model)
        self.guard = MixGuard(policy)
        self.debt = 0.0

    def allowance(self, alone: float) -> float:
        """Seconds that joined prefill may add to decode rows that take `alone` seconds."""
        policy = self._policy
        return min(policy.joined_ceiling, max(policy.joined_floor, policy.joined_share * alone))

    def joined_rows(self, decode: Geometry, start: int, rows: int, now: float) -> int:
        """How many of `rows` prefill rows, behind a history of `start`, may join the decode rows."""
        if rows <= 0 or not self._policy.mixing or not self.guard.allows(now):
            return 0
        if not self.costs.trained:
            return min(rows, self._policy.prefill_floor)
        alone = self.costs.predict(decode)
        return self._largest(decode, start, rows, alone + self.allowance(alone))

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

    def prefill_may_go_first(self, geometry: Geometry, now: float) -> bool:
        """True when an iteration without decode rows may run although decode rows are ready.

        Without mixing, when decoding is owed nothing. With mixing, only when joined prefill fell behind its share
        by at least the whole iteration.
        """
        if not self._policy.mixing or not self.guard.allows(now):
            return self.debt <= 0
        share = self._policy.debt_share
        owed = share * self.costs.predict(geometry)
        return self.debt <= -owed and (owed > 0 or share == 0)

    def observe(self, record: PlanRecord, result: IterationResult, decoding: bool, now: float) -> float:
        """Learn from a finished iteration; `decoding`: streams decode now. Returns the slowest stage's seconds."""
        geometry = record.geometry
        seconds = self.costs.observe(geometry, result.timings)
        if seconds <= 0:
            return 0.0
        if geometry.mixed:
            self.guard.mixed_observed(geometry.exact_rows, record.decode_seconds, record.allowance, seconds, now)
        elif geometry.exact_rows:
            self.guard.decode_observed(geometry.exact_rows, seconds)
        self._account(record, seconds)
        if not decoding:
            self.debt = 0.0
        return seconds

    def ring_lost(self) -> None:
        """The stages may be others now: start to learn anew."""
        self.costs.forget()
        self.guard.ring_lost()
        self.debt = 0.0

    def _account(self, record: PlanRecord, seconds: float) -> None:
        geometry = record.geometry
        decode = seconds if geometry.exact_rows else 0.0
        if geometry.mixed:
            decode = min(seconds, record.decode_seconds)
        share = self._policy.debt_share
        bound = share * self._policy.prefill_target
        debt = self.debt + share * (seconds - decode) - decode
        floor = -bound if record.prefill_left else 0.0  # prefill gathers no credit while it wants nothing
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
