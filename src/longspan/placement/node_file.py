"""Nodes and links from a file that a person writes, TOML or JSON.

rtt_ms = 20                  # round trip of every pair that is not named below
mbps = 100                   # and its rate, if that matters

[[node]]
name = "attic"
address = "192.0.2.7:7000"
memory = "16 GiB"
reserve = "2 GiB"            # stays free
layer_ms = 0.8               # one row through one layer
row_ms = 0.3                 # each further row
head_ms = 4.0                # sampling one row
position_us = 0.02           # each position that a row looks back on, a layer
layers = "0-12"              # these and no others

[[link]]
between = ["attic", "coordinator"]
rtt_ms = 35
"""

from __future__ import annotations

import math
import re
import tomllib
from typing import Annotated

import msgspec

from longspan.errors import PlacementError
from longspan.placement.node import COORDINATOR, FRAME_SECONDS, Link, Network, Node

MOST_BYTES = 1 << 20
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SIZE = re.compile(r"^\s*(\d{1,15}(?:\.\d{1,6})?)\s*([A-Za-z]{0,3})\s*$")
_RANGE = re.compile(r"^\s*(\d{1,6})\s*-\s*(\d{1,6})\s*$")

Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class _Node(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    memory: str | int
    layer_ms: Positive
    reserve: str | int = 0
    row_ms: Positive | None = None
    head_ms: Positive | None = None
    position_us: NotNegative = 0.0
    iteration_ms: NotNegative = FRAME_SECONDS * 1000
    layers: str | None = None
    address: str | None = None


class _Link(msgspec.Struct, forbid_unknown_fields=True):
    between: tuple[str, str]
    rtt_ms: NotNegative
    mbps: Positive | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    node: list[_Node]
    link: list[_Link] = []
    rtt_ms: NotNegative = 0.0
    mbps: Positive | None = None


def read_nodes(data: bytes) -> tuple[tuple[Node, ...], Network]:
    """Nodes in the file's order, and the links between them.

    Raises PlacementError that says which field is wrong.
    """
    if len(data) > MOST_BYTES:
        raise PlacementError(f"the node file has {len(data)} bytes, at most {MOST_BYTES} are allowed")
    try:
        text = data.decode()
        raw = msgspec.json.decode(text) if text.lstrip().startswith("{") else tomllib.loads(text)
        file = msgspec.convert(raw, _File)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise PlacementError(f"the node file cannot be used: {error}") from None
    nodes = tuple(_node(entry) for entry in file.node)
    known = {node.name for node in nodes} | {COORDINATOR}
    links: dict[tuple[str, str], Link] = {}
    for entry in file.link:
        one, other = sorted(entry.between)
        if one == other or not {one, other} <= known:
            raise PlacementError(
                f"a link is between {one!r} and {other!r}: name two nodes, or one and {COORDINATOR!r}"
            )
        links[one, other] = _link(entry.rtt_ms, entry.mbps if entry.mbps is not None else file.mbps)
    return nodes, Network(_link(file.rtt_ms, file.mbps), links)


def _node(entry: _Node) -> Node:
    layers = None
    if entry.layers is not None:
        match = _RANGE.match(entry.layers)
        if match is None:
            raise PlacementError(
                f"node {entry.name} has layers = {entry.layers!r:.40}; write START-END, such as 0-12"
            )
        layers = int(match[1]), int(match[2])
    return Node(
        name=entry.name,
        memory_bytes=_bytes(entry.name, "memory", entry.memory),
        reserve_bytes=_bytes(entry.name, "reserve", entry.reserve),
        layer_seconds=entry.layer_ms / 1e3,
        row_seconds=None if entry.row_ms is None else entry.row_ms / 1e3,
        head_seconds=None if entry.head_ms is None else entry.head_ms / 1e3,
        position_seconds=entry.position_us / 1e6,
        iteration_seconds=entry.iteration_ms / 1e3,
        layers=layers,
        address=entry.address,
    )


def _bytes(node: str, field: str, value: str | int) -> int:
    match = _SIZE.match(str(value))
    unit = None if match is None else _UNITS.get(match[2].upper())
    if match is None or unit is None:
        raise PlacementError(f'node {node} has {field} = {value!r:.40}; write bytes, or a size such as "16 GiB"')
    return int(float(match[1]) * unit)


def _link(rtt_ms: float, mbps: float | None) -> Link:
    return Link(rtt_ms / 2e3, math.inf if mbps is None else mbps * 1e6 / 8)
