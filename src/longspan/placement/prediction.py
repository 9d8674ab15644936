"""How fast a ring will be: seconds of a stage, of a trip, and tokens a second.

Streams share iterations only when there are more of them than stages: with n streams over S stages an iteration
carries r = ceil(n / S) rows, and k = ceil(n / r) iterations are under way. A stream gets its next token when its
iteration is back, or when the slowest stage has served the others, whichever is later:

    period = max(sum of stages and links, k * slowest stage)        tokens a second = n / period
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from longspan.placement.demand import Demand
from longspan.placement.model_shape import ModelShape
from longspan.placement.node import COORDINATOR, Network, Node
from longspan.speculate.depth import Conditions, best_shape, survival_of

DRAFTS = 48
"""Drafts that a proposer is taken to have ready at any time."""

WIDEST = 64
"""Most rows of an iteration that windows are taken to fill."""

Stage = tuple[Node, int, int]
"""A node with its layers [start, end)."""


class Crowd(msgspec.Struct, frozen=True):
    """How streams share iterations. rows: of an iteration. groups: iterations under way."""

    rows: int
    groups: int


class Prediction(msgspec.Struct, frozen=True):
    """Tokens a second of all streams together, and where the time of one trip goes.

    speculated: with drafts of the demand's acceptance, never below `plain`; width, depth: of the windows it takes.
    stage_seconds: of each stage, in a trip. link_seconds: of all links. period: between two tokens of a stream.
    """

    plain: float
    speculated: float
    width: int
    depth: int
    stage_seconds: tuple[float, ...]
    link_seconds: float
    period: float


def crowd(streams: int, stages: int) -> Crowd:
    """How so many streams share iterations over so many stages."""
    rows = -(-streams // stages)
    return Crowd(rows, -(-streams // rows))


def stage_seconds(model: ModelShape, node: Node, start: int, end: int, rows: int, depth: int) -> float:
    """Seconds of one stage for an iteration of `rows` decode rows that look back on `depth` positions."""
    share = sum(model.shares[start:end])
    row = node.layer_seconds + (rows - 1) * node.further_row_seconds
    seconds = node.iteration_seconds + share * row + (end - start) * rows * depth * node.position_seconds
    return seconds + rows * head_seconds(model, node) if end == model.layers else seconds


def head_seconds(model: ModelShape, node: Node) -> float:
    """Seconds of sampling one row; from the sizes, as if the head were layers, when nobody measured it."""
    if node.head_seconds is not None:
        return node.head_seconds
    return node.layer_seconds * model.head_bytes * model.layers / sum(model.layer_bytes)


def link_seconds(network: Network, stages: Sequence[Stage], size: int) -> float:
    """Seconds that `size` bytes of activations are under way around the ring. What comes back, tokens, is small."""
    names = [COORDINATOR, *(node.name for node, _, _ in stages)]
    forward = sum(network.between(*pair).crossing(size) for pair in itertools.pairwise(names))
    return forward + network.between(names[-1], COORDINATOR).crossing(0)


def period_of(model: ModelShape, network: Network, demand: Demand, stages: Sequence[Stage]) -> float:
    """Seconds between two tokens of a stream without drafts."""
    shared = crowd(demand.streams, len(stages))
    seconds = [stage_seconds(model, *stage, shared.rows, demand.depth) for stage in stages]
    links = link_seconds(network, stages, shared.rows * model.width * demand.value_bytes)
    return max(sum(seconds) + links, shared.groups * max(seconds))


def predict(model: ModelShape, network: Network, demand: Demand, stages: Sequence[Stage]) -> Prediction:
    """The speed of a ring of these stages, in this order."""
    shared = crowd(demand.streams, len(stages))
    seconds = tuple(stage_seconds(model, *stage, shared.rows, demand.depth) for stage in stages)
    links = link_seconds(network, stages, shared.rows * model.width * demand.value_bytes)
    slowest = max(range(len(stages)), key=seconds.__getitem__)
    period = period_of(model, network, demand, stages)
    plain = demand.streams / period
    table = [stage_seconds(model, *stages[slowest], rows, demand.depth) for rows in range(1, WIDEST + 1)]
    conditions = Conditions(
        seconds=[max(0.0, 2 * table[0] - table[1]), *table],
        spread=sum(seconds) / seconds[slowest],
        link=links,
        rows=WIDEST,
        sequences=demand.streams,
        group=shared.rows,
    )
    shape = best_shape(survival_of([demand.acceptance] * DRAFTS, DRAFTS), conditions, DRAFTS, open_ended=True)
    return Prediction(plain, max(plain, shape.rate), shape.width, shape.depth, seconds, links, period)
