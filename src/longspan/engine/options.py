"""What an engine is started with."""

from __future__ import annotations

import dataclasses

from longspan.errors import UsageError
from longspan.ring.security import SecurityOptions
from longspan.speculate.proposers import DRAFT

DEFAULT_CONTEXT = 4096
LATENCIES = ("window", "tree")


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """How to serve one model.

    model: reference (see `model.reference.resolve`). stages: parts that the model is split into on this machine; 1
    runs it whole in this process, more run each stage in a child process. splits: explicit ranges, "0-10,10-30".
    ring: addresses of stages that listen elsewhere, in ring order; then `stages` does not count.
    join: HOST:PORT where stages can register; then `stages` of them, more are spares, make the ring.
    lock: a topology lock (see `placement.lock`): exactly its stages hold exactly its ranges, or nothing starts.
    hold_first_stage: the coordinator's own process runs the first stage.
    link_delay_ms: emulated one-way delay of every link between machines. Local stages pretend to be machines of
    their own, the first of them beside the coordinator.
    slots: requests that run at the same time. context: positions of a slot; None: the model's, at most 4096.
    threads: of each local stage; None: this machine's cores shared out over the local stages.
    activation_dtype: of activations between stages. library: path of another libllama of the same build.
    max_waiting: requests that may wait for a slot. queue_timeout: seconds after which a waiting request fails.
    proposer: what drafts tokens ahead ("auto", "none", …; see `speculate.proposers`). draft_model: reference of the
    model that runs ahead beside the coordinator, for the proposer "draft". mtp_head: file of the head
    that drafts on the last stage, instead of the one that Longspan or the model carries. width, depth: rows of a
    window and windows of a request in flight; both None: chosen from what is measured.
    latency: "window": windows of drafts, for any number of requests. "tree": one request at a time, whose drafts
    are token trees of the model's MTP head; `slots`, `proposer`, `width` and `depth` do not count then.
    mixing: prefill may join decode rows in one iteration. cost_model: name of the model that predicts durations.
    trace: file that gets one record an iteration.
    silence_seconds: how long a stage may say nothing before it counts as lost; None: 30.
    security: how this coordinator and the stages of `ring` know each other; local stages need nothing.
    heal_seconds: how long a lost ring may take to form again before running requests fail.
    """

    model: str = "demo"
    stages: int = 1
    splits: str | None = None
    ring: tuple[str, ...] = ()
    join: str | None = None
    lock: str | None = None
    hold_first_stage: bool = False
    link_delay_ms: float = 0.0
    slots: int = 8
    context: int | None = None
    threads: int | None = None
    activation_dtype: str = "float32"
    library: str | None = None
    max_waiting: int = 256
    queue_timeout: float | None = None
    proposer: str = "auto"
    draft_model: str | None = None
    mtp_head: str | None = None
    width: int | None = None
    depth: int | None = None
    latency: str = "window"
    mixing: bool = True
    cost_model: str = "analytic"
    trace: str | None = None
    heal_seconds: float = 30.0
    silence_seconds: float | None = None
    security: SecurityOptions = dataclasses.field(default_factory=SecurityOptions)

    def __post_init__(self) -> None:
        if self.join is not None and self.ring:
            raise UsageError("stages are called (ring) or come by themselves (join), not both")
        for name, low, high in (
            ("stages", 1, 256),
            ("slots", 1, 256),
            ("link_delay_ms", 0, 60_000),
            ("max_waiting", 1, 1 << 20),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise UsageError(f"{name} is {value}, expected {low} to {high}")
        if (self.proposer == DRAFT) != (self.draft_model is not None):
            raise UsageError(
                'the proposer "draft" needs a draft model, and no other takes one: give --proposer draft together '
                "with --draft-model REF, or neither"
            )
        if self.latency not in LATENCIES:
            raise UsageError(f"latency is {self.latency!r}, expected {' or '.join(LATENCIES)}")
        for name in ("context", "threads"):
            value = getattr(self, name)
            if value is not None and value < (2 if name == "context" else 1):
                raise UsageError(f"{name} is {value}; leave it out or give a larger number")
