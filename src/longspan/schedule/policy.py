"""How the planner chooses, within the limits."""

from __future__ import annotations

import msgspec

from longspan.errors import UsageError


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The planner's choices. Times are seconds.

    mixing: prefill rows may join decode rows in one iteration.
    lanes: live decodes are spread over this many iterations, so that as many stages work at the same time.
    cost_model: name of the cost model that predicts durations ("analytic", "bucketed", "ema").

    prefill_target: longest predicted time of an iteration without decode rows while somebody waits for it; rows are
        halved until it holds, but not below `prefill_floor` rows.
    joined_share: with mixing, a piece of prefill, joined to decode rows or between them, may take this multiple of
        the time that the decode rows take alone; at least `joined_floor` and at most `joined_ceiling` seconds are
        allowed. Only a large fixed cost makes a piece that runs alone longer.
    debt_share: seconds of decoding that are owed for one second of prefill while a stream decodes.
    whole_rows: a prompt with no more rows than this is cut only by a hard limit, never by `prefill_target`.

    overtake_limit: how many later, not more urgent sequences may be admitted before an earlier one.
    aging_seconds: waiting that outweighs one level of priority.
    patience: seconds of arrival time that a prompt concedes to shorter ones for each of its rows.
    queue_timeout: longest wait in the queue; None: no limit.
    loss_limit: rings that may be lost while a sequence runs, without a token of it in between, before it fails: it
        may be what they are lost by.
    prefix_reuse: keep the KV of finished sequences and start new ones from a common prefix.
    cache_window: how far down the queue the planner looks for a prompt whose prefix is cached, or that fits.

    guard_tolerance: a mixed iteration may take this share longer than was allowed before it counts as a breach.
    guard_breaches: breaches one after the other that suspend mixing. guard_pause, guard_pause_limit: first and
        longest suspension; it doubles at each failed probe.
    """

    mixing: bool = True
    lanes: int = 1
    cost_model: str = "analytic"

    prefill_target: float = 0.5
    prefill_floor: int = 16
    joined_share: float = 2.0
    joined_floor: float = 0.008
    joined_ceiling: float = 0.25
    debt_share: float = 0.5
    whole_rows: int = 512

    overtake_limit: int = 3
    aging_seconds: float = 10.0
    patience: float = 0.002
    queue_timeout: float | None = None
    loss_limit: int = 4
    prefix_reuse: bool = True
    cache_window: int = 8

    guard_tolerance: float = 0.5
    guard_breaches: int = 2
    guard_pause: float = 1.0
    guard_pause_limit: float = 60.0

    def __post_init__(self) -> None:
        for name in ("lanes", "prefill_floor", "overtake_limit", "loss_limit", "cache_window", "guard_breaches"):
            if getattr(self, name) < 1:
                raise UsageError(f"policy {name} is {getattr(self, name)}; it must be at least 1")
        for name in ("prefill_target", "aging_seconds", "guard_pause"):
            if not getattr(self, name) > 0:
                raise UsageError(f"policy {name} is {getattr(self, name)}; it must be above 0 seconds")
        for name in ("joined_share", "joined_floor", "joined_ceiling", "debt_share", "patience", "guard_tolerance"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"policy {name} is {getattr(self, name)}; it must not be negative")
