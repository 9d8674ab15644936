"""The options that every command which runs a model shares."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from longspan.errors import UsageError

if TYPE_CHECKING:
    from longspan.engine import EngineOptions

RING = Group("Ring", sort_key=1)
RUNTIME = Group("Runtime", sort_key=2)
SPECULATION = Group("Speculation", sort_key=4)
SCHEDULING = Group("Scheduling", sort_key=3)
SECURITY = Group("Security of the ring", sort_key=5)

AtLeastOne = Annotated[int, Parameter(validator=Number(gte=1))]
Requantize = Annotated[
    str | None,
    Parameter(
        help='Measure with the layers packed as this type; "none" as they are (default: Q4_0 for the demo model, '
        'for whose own type llama.cpp has no fast kernel; "none" for any other).'
    ),
]
"""Of the commands that measure; see `bench.measured_model`."""
Milliseconds = Annotated[float, Parameter(validator=Number(gte=0, lte=60_000))]


@Parameter(name="*")
@dataclasses.dataclass(frozen=True)
class EngineArguments:
    """Where the layers run, and with what. Field by field what `longspan.engine.EngineOptions` takes."""

    stages: Annotated[
        AtLeastOne, Parameter(group=RING, help="Split the layers evenly over this many processes here.")
    ] = 1
    splits: Annotated[
        str | None, Parameter(group=RING, help="Split at other points: layer ranges as in 0-10,10-30.")
    ] = None
    ring: Annotated[
        str | None,
        Parameter(group=RING, help="Use stages that listen elsewhere: HOST:PORT,HOST:PORT in ring order."),
    ] = None
    join: Annotated[
        str | None,
        Parameter(
            group=RING, help="Let stages come by themselves (longspan stage --join): HOST:PORT to listen on."
        ),
    ] = None
    lock: Annotated[
        str | None,
        Parameter(group=RING, help="Form exactly the ring of this file (longspan plan --lock), or none."),
    ] = None
    hold_first_stage: Annotated[
        bool, Parameter(group=RING, help="Run the first stage in the coordinator's own process.")
    ] = False
    link_delay: Annotated[
        Milliseconds, Parameter(group=RING, help="Pretend that links between machines take this many ms each way.")
    ] = 0.0
    activation_dtype: Annotated[
        Literal["float32", "float16"], Parameter(group=RING, help="How activations travel between stages.")
    ] = "float32"
    slots: Annotated[
        AtLeastOne | None,
        Parameter(group=RUNTIME, help="Requests that run at once (default: 8, or what the command needs)."),
    ] = None
    context: Annotated[
        AtLeastOne | None,
        Parameter(
            group=RUNTIME, help="Longest prompt and answer together, in tokens (default: 4096 or the model's)."
        ),
    ] = None
    threads: Annotated[
        AtLeastOne | None, Parameter(group=RUNTIME, help="Threads of each stage (default: its share of the cores).")
    ] = None
    library: Annotated[
        str | None, Parameter(group=RUNTIME, help="Another libllama of the same build, for example with CUDA.")
    ] = None
    mixing: Annotated[
        Literal["on", "off"], Parameter(group=SCHEDULING, help="Let prompts join iterations that decode.")
    ] = "on"
    cost_model: Annotated[
        Literal["analytic", "bucketed", "ema"],
        Parameter(group=SCHEDULING, help="What predicts how long an iteration takes."),
    ] = "analytic"
    trace: Annotated[
        str | None, Parameter(group=SCHEDULING, help="Write a JSON line for every iteration to this file.")
    ] = None
    proposer: Annotated[
        Literal["auto", "none", "ngram-cache", "ngram-suffix", "ngram-edit", "mtp", "mtp+ngram", "draft"],
        Parameter(group=SPECULATION, help="What drafts tokens ahead; the tokens stay the same."),
    ] = "auto"
    draft_model: Annotated[
        str | None,
        Parameter(
            group=SPECULATION,
            help="With --proposer draft: a small model of the same vocabulary that runs ahead here.",
        ),
    ] = None
    mtp_head: Annotated[
        str | None,
        Parameter(
            group=SPECULATION,
            help="File of the head that drafts (longspan train-mtp); stages elsewhere need a copy of it.",
        ),
    ] = None
    width: Annotated[
        AtLeastOne | None, Parameter(group=SPECULATION, help="Rows of a window (default: from what is measured).")
    ] = None
    depth: Annotated[
        AtLeastOne | None, Parameter(group=SPECULATION, help="Windows of a request in flight (default: the same).")
    ] = None
    latency: Annotated[
        Literal["window", "tree"],
        Parameter(
            group=SPECULATION,
            help="Whether drafts are windows, or token trees: faster for one request at a time on new text.",
        ),
    ] = "window"
    max_waiting: Annotated[AtLeastOne, Parameter(group=SCHEDULING, help="Requests that may wait for a slot.")] = 256
    queue_timeout: Annotated[
        float | None,
        Parameter(
            group=SCHEDULING, validator=Number(gt=0), help="Give up on a request that waited so many seconds."
        ),
    ] = None
    heal_seconds: Annotated[
        float,
        Parameter(group=RING, validator=Number(gte=0), help="How long running requests wait for a lost stage."),
    ] = 30.0

    silence_seconds: Annotated[
        float | None,
        Parameter(
            group=RING,
            validator=Number(gte=1, lte=600),
            help="Give up a stage that says nothing for so long (default: 30).",
        ),
    ] = None
    keys: Annotated[
        str | None,
        Parameter(group=SECURITY, env_var="LONGSPAN_KEYS", help="Directory of this node's keys."),
    ] = None
    token_file: Annotated[
        str | None,
        Parameter(group=SECURITY, env_var="LONGSPAN_TOKEN_FILE", help="File with the secret that all nodes share."),
    ] = None
    pin: Annotated[
        tuple[str, ...],
        Parameter(group=SECURITY, help="Let in only certificates with these fingerprints; may be given again."),
    ] = ()
    insecure: Annotated[
        bool, Parameter(group=SECURITY, help="Use stages elsewhere over links that anybody can read and change.")
    ] = False

    def options(self, model: str, *, slots: int = 8) -> EngineOptions:
        """These arguments for one model, with so many slots unless they say. Each slot takes memory for a context.

        Raises UsageError when two of them contradict each other.
        """
        from longspan.engine import EngineOptions
        from longspan.ring.security import SecurityOptions

        if self.ring is not None and self.stages != 1:
            raise UsageError("--ring names the stages already; leave --stages away.")
        addresses = tuple(address.strip() for address in self.ring.split(",")) if self.ring else ()
        return EngineOptions(
            model=model,
            stages=self.stages,
            splits=self.splits,
            ring=addresses,
            join=self.join,
            lock=self.lock,
            hold_first_stage=self.hold_first_stage,
            link_delay_ms=self.link_delay,
            slots=self.slots or slots,
            context=self.context,
            threads=self.threads,
            activation_dtype=self.activation_dtype,
            library=self.library,
            max_waiting=self.max_waiting,
            queue_timeout=self.queue_timeout,
            proposer=self.proposer,
            draft_model=self.draft_model,
            mtp_head=self.mtp_head,
            width=self.width,
            depth=self.depth,
            latency=self.latency,
            mixing=self.mixing == "on",
            cost_model=self.cost_model,
            trace=self.trace,
            heal_seconds=self.heal_seconds,
            silence_seconds=self.silence_seconds,
            security=SecurityOptions(self.keys, self.token_file, self.pin, self.insecure),
        )
