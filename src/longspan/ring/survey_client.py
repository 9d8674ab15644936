"""A planner asks stages what their machines are like."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Sequence

from longspan import __version__
from longspan.errors import ProtocolError, RingError
from longspan.placement.model_shape import ModelShape
from longspan.placement.node import COORDINATOR, Link, Network, Node
from longspan.ring.dial import dial
from longspan.ring.frame import PROTOCOL_VERSION, Kind
from longspan.ring.messages import Hello, Progress, Refuse, decode, encode
from longspan.ring.security import OPEN, Security
from longspan.ring.survey_messages import REPORT, SURVEY, NodeReport, Survey
from longspan.ring.survey_server import round_trip

CONNECT_SECONDS = 10.0
MEASURE_SECONDS = 300.0
"""Longest time between two signs of life of a stage that measures."""

PROBED_BYTES = 256 << 20
"""Weights that a speed is measured with, if the model has them: more than caches hold, and soon loaded."""

RESERVED_SHARE = 0.05
"""Of a machine's free memory, what stays free on nodes that were asked instead of being described."""


async def survey_nodes(
    addresses: Sequence[tuple[str, int]],
    model: ModelShape,
    *,
    security: Security = OPEN,
    report: Callable[[str], None] = lambda text: None,
) -> tuple[tuple[Node, ...], Network]:
    """Ask the stages at these addresses, one after the other: they may share a machine. Names are addresses.

    Raises RingError that names the stage which did not answer or could not measure.
    """
    names = [f"{host}:{port}" for host, port in addresses]
    nodes: list[Node] = []
    links: dict[tuple[str, str], Link] = {}
    for index, address in enumerate(addresses):
        name = names[index]
        others = list(enumerate(addresses))[index + 1 :]
        try:
            found, distance = await _ask(
                address, model, [peer for _, peer in others], security, functools.partial(_tell, report, name)
            )
        except RingError as error:
            raise RingError(f"stage {name}: {error}") from None
        if found.speed is None:
            raise RingError(f"stage {name} could not measure its speed: {found.reason}")
        links[_pair(COORDINATOR, name)] = Link(distance / 2)
        for (other, _), seconds in zip(others, found.round_trips, strict=True):
            if seconds is None:
                raise RingError(f"stage {name} has no way to stage {names[other]}; both must reach each other")
            links[_pair(name, names[other])] = Link(seconds / 2)
        nodes.append(_node(name, found))
    known = itertools.chain(links.values(), (Link(0.0),))
    return tuple(nodes), Network(next(known), links)


def _tell(report: Callable[[str], None], name: str, text: str) -> None:
    report(f"{name}: {text}")


async def _ask(
    address: tuple[str, int],
    model: ModelShape,
    peers: Sequence[tuple[str, int]],
    security: Security,
    report: Callable[[str], None],
) -> tuple[NodeReport, float]:
    """One stage's report, and the round trip to it."""
    link = await dial(*address, CONNECT_SECONDS, security, "stage")
    try:
        await link.send(encode(Hello(PROTOCOL_VERSION, __version__, "planner", "", model.digest)))
        many = probed_layers(model)
        await link.send(SURVEY.encode(Survey(max(1, many // 2), many, tuple(peers))))
        while True:
            try:
                async with asyncio.timeout(MEASURE_SECONDS):
                    frame = await link.receive()
            except TimeoutError:
                raise RingError(f"it has said nothing for {MEASURE_SECONDS:g} s while it should measure") from None
            if frame.kind is Kind.PROGRESS:
                report(decode(frame, Progress).text)
            elif frame.kind is Kind.REFUSE:
                raise RingError(f"refused: {decode(frame, Refuse).reason}")
            else:
                found = REPORT.decode(frame)
                if len(found.round_trips) != len(peers):
                    raise ProtocolError(f"{len(peers)} distances were asked for, {len(found.round_trips)} came")
                return found, await round_trip(link)
    finally:
        await link.close()


def probed_layers(model: ModelShape) -> int:
    """How many layers a speed is measured with."""
    average = max(1, sum(model.layer_bytes) // model.layers)
    return max(1, min(model.layers - 1, max(2, PROBED_BYTES // average)))


def _node(name: str, found: NodeReport) -> Node:
    assert found.speed is not None
    return Node(
        name=name,
        memory_bytes=found.memory_bytes,
        reserve_bytes=int(found.memory_bytes * RESERVED_SHARE),
        layer_seconds=found.speed.layer_seconds,
        row_seconds=found.speed.row_seconds,
        position_seconds=found.speed.position_seconds,
        head_seconds=found.speed.head_seconds,
        iteration_seconds=found.speed.iteration_seconds,
        address=name,
    )


def _pair(one: str, other: str) -> tuple[str, str]:
    return min(one, other), max(one, other)
