"""What the ring and the engine say of themselves: shared by engine, server and command line."""

from __future__ import annotations

import msgspec

from longspan.schedule.statistics import PlannerStatistics
from longspan.schedule.trace import TraceRecord
from longspan.speculate.ledger import SpeculationStatistics


class StageStatus(msgspec.Struct, frozen=True):
    """One stage as the coordinator sees it.

    state: "loading", "ready", "missing" or "failed"; detail: the newest line about it. address: "in this process"
    when the coordinator holds the stage. round_trip_ms: of the newest ping. compute_ms: of the newest iteration.
    """

    index: int
    start: int
    end: int
    address: str
    state: str
    detail: str = ""
    pid: int | None = None
    round_trip_ms: float | None = None
    compute_ms: float | None = None
    slots: int | None = None
    cells_per_slot: int | None = None
    exact_rows: int | None = None
    memory_bytes: int | None = None


class MemberStatus(msgspec.Struct, frozen=True):
    """A stage that has joined by itself. stage: its index in the ring; None for a spare."""

    name: str
    address: str
    stage: int | None = None


class RingStatus(msgspec.Struct, frozen=True):
    """The whole ring. epoch: raised each time the ring forms again. link_delay_ms: emulated, one way.

    members: stages that have joined by themselves, in the order in which they did; empty for any other ring.
    """

    model_id: str
    digest: str
    epoch: int
    layers: int
    stages: tuple[StageStatus, ...]
    link_delay_ms: float = 0.0
    members: tuple[MemberStatus, ...] = ()


class Readiness(msgspec.Struct, frozen=True):
    """Whether requests can be served; `missing` says in sentences what is not there yet."""

    ready: bool
    missing: tuple[str, ...] = ()


class EngineStatistics(msgspec.Struct, frozen=True):
    """Figures of the engine since it started; times in seconds.

    kv_usage: share of all slots' cells in use. iteration_rows: rows of all iterations together. planner,
    speculation: their own figures; None without speculation.
    """

    running: int
    waiting: int
    kv_usage: float
    slots: int
    free_slots: int
    in_flight: int
    requests_finished: int
    requests_failed: int
    requests_cancelled: int
    prompt_tokens: int
    generated_tokens: int
    iterations: int
    mixed_iterations: int
    iteration_rows: int
    preemptions: int
    planner: PlannerStatistics | None = None
    speculation: SpeculationStatistics | None = None


class RequestStatus(msgspec.Struct, frozen=True):
    """One request under way.

    sequence: its number. state: "waiting", "prompt" (it has a slot and no token yet) or "generating".
    seconds: since it arrived. tokens_per_second: after its first token.
    """

    sequence: int
    state: str
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    max_tokens: int
    seconds: float
    tokens_per_second: float


class EngineActivity(msgspec.Struct, frozen=True):
    """What goes on at `now` (seconds, the engine's clock): figures, requests, iterations that completed lately."""

    now: float
    statistics: EngineStatistics
    requests: tuple[RequestStatus, ...]
    iterations: tuple[TraceRecord, ...]
