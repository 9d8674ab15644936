"""Small placements, drawn at random, and the slow way of solving them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import NamedTuple

from longspan.placement.demand import Demand
from longspan.placement.memory import stage_memory
from longspan.placement.model_shape import ModelShape
from longspan.placement.node import COORDINATOR, Link, Network, Node
from longspan.placement.prediction import period_of

MIB = 1 << 20


class Case(NamedTuple):
    """One question."""

    model: ModelShape
    nodes: tuple[Node, ...]
    network: Network
    demand: Demand
    keep_order: bool


def random_case(seed: int) -> Case:
    """A model of up to 6 layers, up to 4 nodes; often tight, sometimes impossible."""
    draw = random.Random(seed)
    layers = draw.randint(1, 6)
    model = ModelShape(
        model_id="small",
        digest="ab" * 32,
        layer_bytes=tuple(draw.randint(1, 40) * MIB for _ in range(layers)),
        shared_bytes=draw.randint(0, 2) * MIB,
        head_bytes=draw.randint(1, 60) * MIB,
        position_bytes=tuple(draw.choice((0, 1024, 4096)) for _ in range(layers)),
        width=draw.choice((64, 4096)),
        vocabulary=draw.choice((512, 32_000)),
        refused=frozenset(
            span
            for span in itertools.combinations(range(layers + 1), 2)
            if span != (0, layers) and draw.random() < 0.1
        ),
    )
    names = draw.sample(["anna", "berta", "clara", "dora"], draw.randint(1, 4))
    nodes = tuple(_node(draw, name, layers) for name in names)
    pairs = list(itertools.combinations(sorted((COORDINATOR, *names)), 2))
    links = {pair: _link(draw) for pair in pairs if draw.random() < 0.7}
    demand = Demand(
        slots=draw.choice((1, 4)),
        cells=draw.choice((128, 2048)),
        streams=draw.choice((1, 1, 2, 3, 5, 8)),
        depth=draw.choice((0, 500)),
        max_rows=draw.choice((8, 512)),
    )
    return Case(model, nodes, Network(_link(draw), links), demand, draw.random() < 0.25)


def _node(draw: random.Random, name: str, layers: int) -> Node:
    fixed = None
    if draw.random() < 0.15:
        start = draw.randrange(layers)
        fixed = start, draw.randint(start + 1, layers)
    layer = draw.uniform(0.1, 5.0) / 1000
    return Node(
        name=name,
        memory_bytes=(80 + draw.randint(20, 300)) * MIB,
        reserve_bytes=draw.choice((0, 20)) * MIB,
        layer_seconds=layer,
        row_seconds=draw.choice((None, layer / 4)),
        position_seconds=draw.choice((0.0, 1e-7)),
        head_seconds=draw.choice((None, layer * 3)),
        layers=fixed,
    )


def _link(draw: random.Random) -> Link:
    return Link(draw.choice((0.0, 0.002, 0.03)), draw.choice((1e6, 1e9)))


def all_placements(case: Case) -> Iterator[list[tuple[Node, int, int]]]:
    """Every placement that is allowed and fits."""
    layers = case.model.layers
    for count in range(1, len(case.nodes) + 1):
        orders = itertools.combinations if case.keep_order else itertools.permutations
        for order in orders(case.nodes, count):
            if any(node.layers is not None and node not in order for node in case.nodes):
                continue
            for cuts in itertools.combinations(range(1, layers), count - 1):
                bounds = (0, *cuts, layers)
                stages = list(zip(order, bounds, bounds[1:], strict=False))
                if all(_holds(case, *stage) for stage in stages):
                    yield stages


def _holds(case: Case, node: Node, start: int, end: int) -> bool:
    if (start, end) in case.model.refused or (node.layers is not None and node.layers != (start, end)):
        return False
    return stage_memory(case.model, case.demand, start, end).total <= node.usable_bytes


def best_rate(case: Case) -> float | None:
    """Most tokens a second of all placements; None when there is none."""
    periods = (period_of(case.model, case.network, case.demand, stages) for stages in all_placements(case))
    shortest = min(periods, default=None)
    return None if shortest is None else case.demand.streams / shortest
