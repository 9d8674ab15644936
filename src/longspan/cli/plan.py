"""`longspan plan`: who gets which layers, and how fast that will be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from longspan.cli.engine_options import AtLeastOne
from longspan.cli.output import format_table, human_bytes, print_facts, print_json
from longspan.cli.progress import ProgressBars, progress_line
from longspan.errors import LockError, UsageError

if TYPE_CHECKING:
    from longspan.placement.model_shape import ModelShape
    from longspan.placement.node import Network, Node
    from longspan.placement.placement import Placement
    from longspan.ring.security import SecurityOptions

NODES = Group("Nodes", sort_key=0)
LOAD = Group("Load", sort_key=1)
SECURITY = Group("Security of the ring", sort_key=2)

_HEADINGS = ("node", "layers", "weights", "KV", "work", "head", "needs", "may use", "ms a token")


def plan(
    model: str,
    /,
    *,
    nodes: Annotated[Path | None, Parameter(group=NODES)] = None,
    ring: Annotated[str | None, Parameter(group=NODES)] = None,
    keep_order: Annotated[bool, Parameter(group=NODES)] = False,
    slots: Annotated[AtLeastOne, Parameter(group=LOAD)] = 8,
    context: Annotated[AtLeastOne | None, Parameter(group=LOAD)] = None,
    streams: Annotated[AtLeastOne, Parameter(group=LOAD)] = 1,
    depth: Annotated[int, Parameter(group=LOAD, validator=Number(gte=0))] = 512,
    acceptance: Annotated[float, Parameter(group=LOAD, validator=Number(gte=0, lt=1))] = 0.7,
    activation_dtype: Annotated[Literal["float32", "float16"], Parameter(group=LOAD)] = "float32",
    keys: Annotated[str | None, Parameter(group=SECURITY, env_var="LONGSPAN_KEYS")] = None,
    token_file: Annotated[str | None, Parameter(group=SECURITY, env_var="LONGSPAN_TOKEN_FILE")] = None,
    pin: Annotated[tuple[str, ...], Parameter(group=SECURITY)] = (),
    insecure: Annotated[bool, Parameter(group=SECURITY)] = False,
    lock: Path | None = None,
    json: bool = False,
) -> None:
    """Find out which machine should hold which layers, and how fast the ring will be.

    The machines are described in a file, or running stages are asked: they
    measure their speed with some layers, and how far they are from each other.
    Of all placements that fit, the one with the most tokens a second of plain
    decoding is shown; what cannot fit is refused, naming the node that lacks
    memory. Ends with exit code 2 then.

    For example:

        longspan plan demo --nodes home.toml
        longspan plan demo --ring 192.0.2.7:7000,192.0.2.8:7000 --streams 4
        longspan plan model.gguf --nodes home.toml --context 8192 --lock home.lock

    A node file has a table for each node, and one for each link that differs:

        rtt_ms = 20
        [[node]]
        name = "attic"
        address = "192.0.2.7:7000"
        memory = "16 GiB"
        reserve = "2 GiB"
        layer_ms = 0.8
        [[link]]
        between = ["attic", "coordinator"]
        rtt_ms = 35

    Of a node also: row_ms (each further row of a batch), head_ms (sampling a
    row), position_us (each position looked back on, a layer), layers = "0-12"
    (it must hold these). mbps is the rate of links.

    Parameters
    ----------
    model
        The model to place.
    nodes
        A file that describes the machines, TOML or JSON.
    ring
        Stages that listen: HOST:PORT,HOST:PORT.
    keep_order
        Let nodes follow each other as they are given.
    slots
        Requests that have memory at once.
    context
        Positions of each (default: 4096 or the model's).
    streams
        Requests that decode at once, when the speed is predicted.
    depth
        Positions that each of them looks back on.
    acceptance
        Chance that a draft is right when those before it are.
    activation_dtype
        How activations travel between stages.
    keys, token_file, pin, insecure
        As for longspan serve, for the stages of --ring.
    lock
        Write the placement to this file, for longspan serve --lock.
    json
        Print the placement as JSON.
    """
    from longspan.engine.options import DEFAULT_CONTEXT
    from longspan.model.reference import resolve
    from longspan.placement.demand import Demand
    from longspan.placement.lock import encode_lock, lock_of
    from longspan.placement.placement import place
    from longspan.ring.model_shape import shape_of
    from longspan.ring.security import SecurityOptions

    if (nodes is None) == (ring is None):
        raise UsageError(
            "say where layers can go: --nodes FILE describes machines, --ring HOST:PORT,… asks stages."
        )
    source = resolve(model, progress=ProgressBars())
    shape = shape_of(source)
    demand = Demand(
        slots=slots,
        cells=context or min(DEFAULT_CONTEXT, source.description.context_length),
        streams=streams,
        depth=depth,
        acceptance=acceptance,
        value_bytes=2 if activation_dtype == "float16" else 4,
    )
    security = SecurityOptions(keys, token_file, pin, insecure)
    machines, network = _from_file(nodes) if nodes is not None else _from_ring(ring or "", shape, security)
    placement = place(shape, machines, network, demand, keep_order=keep_order)
    if lock is not None:
        try:
            lock.write_bytes(encode_lock(lock_of(placement)))
        except OSError as error:
            raise LockError(f"cannot write the lock {lock}: {error.strerror or error}") from None
    if json:
        print_json(placement)
    else:
        _show(placement, demand.acceptance)


def _from_file(path: Path) -> tuple[tuple[Node, ...], Network]:
    from longspan.placement.node_file import MOST_BYTES, read_nodes

    try:
        with path.open("rb") as file:
            return read_nodes(file.read(MOST_BYTES + 1))
    except OSError as error:
        raise UsageError(f"cannot read the node file {path}: {error.strerror or error}") from None


def _from_ring(text: str, shape: ModelShape, options: SecurityOptions) -> tuple[tuple[Node, ...], Network]:
    import asyncio

    from longspan.ring.ring_plan import parse_address
    from longspan.ring.security import check_exposure, load_security
    from longspan.ring.survey_client import survey_nodes

    addresses = [parse_address(address) for address in text.split(",")]
    security = load_security(options)
    check_exposure((host for host, _ in addresses), security, insecure=options.insecure, what="call")
    with progress_line() as show:
        return asyncio.run(survey_nodes(addresses, shape, security=security, report=show))


def _show(placement: Placement, acceptance: float) -> None:
    """The placement as a table."""
    prediction = placement.prediction
    rows = [
        (
            stage.node,
            f"{stage.start}-{stage.end}",
            human_bytes(stage.memory.weights),
            human_bytes(stage.memory.keys_and_values),
            human_bytes(stage.memory.activations + stage.memory.process),
            human_bytes(stage.memory.head),
            human_bytes(stage.memory.total),
            human_bytes(stage.usable_bytes),
            f"{seconds * 1000:.1f}",
        )
        for stage, seconds in zip(placement.stages, prediction.stage_seconds, strict=True)
    ]
    print(format_table(_HEADINGS, rows))
    print()
    windows = f"windows of {prediction.width} rows, {prediction.depth} in flight"
    facts = [
        ("model", f"{placement.model_id}, {placement.layers} layers"),
        ("tokens per second", f"{prediction.plain:.1f} plain"),
        ("", f"{prediction.speculated:.1f} with drafts that are right {acceptance:.0%} of the time ({windows})"),
        ("links", f"{prediction.link_seconds * 1000:.1f} ms of a trip"),
        ("limited by", placement.limit),
    ]
    if placement.spares:
        facts.append(("spare", ", ".join(placement.spares)))
    if not placement.any_order and len(placement.stages) > 1:
        facts.append(("order", "as the nodes were given; no other was looked at"))
    print_facts(facts)
