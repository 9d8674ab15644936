"""From a model and machines to who holds which layers."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import msgspec
import numpy as np

from longspan.errors import PlacementError
from longspan.placement.demand import Demand
from longspan.placement.memory import StageMemory, stage_memory
from longspan.placement.model_shape import ModelShape
from longspan.placement.node import COORDINATOR, Network, Node
from longspan.placement.prediction import Prediction, crowd, head_seconds, predict
from longspan.placement.solver import MOST_NODES, Costs, Found, Times, cheapest, fastest

FULL = 0.01
"""Share by which a ring must become faster with memory without end before memory is said to limit it."""


class PlacedStage(msgspec.Struct, frozen=True):
    """One node's part: its layers [start, end), what they need, and what it may use, in bytes."""

    node: str
    address: str | None
    start: int
    end: int
    memory: StageMemory
    usable_bytes: int


class Placement(msgspec.Struct, frozen=True):
    """Who holds which layers, and how fast that is.

    limit: what keeps the ring from being faster. spares: nodes that hold nothing. any_order: every order of the
    nodes was searched, not only the given one.
    """

    model_id: str
    digest: str
    layers: int
    stages: tuple[PlacedStage, ...]
    prediction: Prediction
    limit: str
    spares: tuple[str, ...]
    any_order: bool


def place(
    model: ModelShape, nodes: Sequence[Node], network: Network, demand: Demand, *, keep_order: bool = False
) -> Placement:
    """The placement with the most tokens a second of plain decoding; see `prediction` for what that is.

    keep_order: nodes follow each other as given; so they do anyway when there are more than `MOST_NODES`.
    Raises PlacementError that names what every node lacks when the model does not fit, or fixed ranges that no
    placement can have.
    """
    check_nodes(nodes, model.layers)
    keep_order = keep_order or len(nodes) > MOST_NODES
    task = _Task(model, nodes, network, demand, ordered=keep_order)
    found = task.fastest(task.fits())
    if found is None:
        raise PlacementError(task.refusal())
    stages = tuple(_placed(model, demand, nodes[node], start, end) for node, start, end in found.stages)
    used = {node for node, _, _ in found.stages}
    prediction = predict(model, network, demand, [(nodes[node], start, end) for node, start, end in found.stages])
    return Placement(
        model_id=model.model_id,
        digest=model.digest,
        layers=model.layers,
        stages=stages,
        prediction=prediction,
        limit=task.limit(found, stages, prediction),
        spares=tuple(node.name for index, node in enumerate(nodes) if index not in used),
        any_order=not keep_order,
    )


def describe(
    model: ModelShape,
    nodes: Sequence[Node],
    network: Network,
    demand: Demand,
    ranges: Sequence[tuple[int, int]],
) -> Placement:
    """The placement that gives these ranges to the nodes in their order, with its figures.

    Raises PlacementError when one does not fit.
    """
    fixed = [msgspec.structs.replace(node, layers=span) for node, span in zip(nodes, ranges, strict=True)]
    return place(model, fixed, network, demand, keep_order=True)


def check_nodes(nodes: Sequence[Node], layers: int) -> None:
    """Raise PlacementError for names that are missing or there twice, and for ranges that no model has."""
    names = [node.name for node in nodes]
    if not names:
        raise PlacementError("there is no node to place layers on; name at least one")
    for name in names:
        if not name or name == COORDINATOR or names.count(name) > 1:
            raise PlacementError(
                f"a node is called {name!r}: every node needs a name of its own, not {COORDINATOR!r}"
            )
    for node in nodes:
        if node.layers is not None and not 0 <= node.layers[0] < node.layers[1] <= layers:
            raise PlacementError(
                f"node {node.name} shall hold the layers {node.layers[0]}-{node.layers[1]}, but the model has the "
                f"layers 0-{layers}"
            )


class _Task:
    """One search."""

    def __init__(
        self, model: ModelShape, nodes: Sequence[Node], network: Network, demand: Demand, *, ordered: bool
    ) -> None:
        self._model = model
        self._nodes = nodes
        self._network = network
        self._demand = demand
        self._ordered = ordered
        size = model.layers + 1
        starts, ends = np.arange(size)[:, None], np.arange(size)[None, :]
        self._last = ends == model.layers
        self._count = ends - starts
        shares = np.array(model.share_before())
        self._share = shares[None, :] - shares[:, None]
        possible = starts < ends
        for start, end in model.refused:
            possible[start, end] = False
        self._allowed = np.stack([self._held(node, possible) for node in nodes])

    @staticmethod
    def _held(
        node: Node, possible: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        if node.layers is None:
            return possible
        only = np.zeros_like(possible)
        only[node.layers] = possible[node.layers]
        return only

    @functools.cached_property
    def _needs(self) -> Times:
        """Bytes that the layers [start, end) need, (layers + 1, layers + 1)."""
        model, demand = self._model, self._demand
        weights = np.concatenate(([0], np.cumsum(model.layer_bytes, dtype=np.float64)))
        cells = np.concatenate(([0], np.cumsum(model.position_bytes, dtype=np.float64)))
        whole = stage_memory(model, demand, 0, model.layers)
        beside = model.shared_bytes + whole.activations + whole.process
        return np.asarray(
            beside
            + (weights[None, :] - weights[:, None])
            + demand.slots * demand.cells * (cells[None, :] - cells[:, None])
            + np.where(self._last, whole.head, 0)
        )

    def fits(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """(nodes, start, end): what each node may hold and has the memory for."""
        usable = np.array([node.usable_bytes for node in self._nodes], np.float64)
        return self._allowed & (self._needs <= usable[:, None, None])

    def fastest(self, holdable: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Found | None:
        """The fastest placement of what nodes can hold."""
        streams, nodes = self._demand.streams, len(self._nodes)
        if streams == 1:
            # The sum is never below the slowest stage: one search is enough for every number of stages.
            by_count = cheapest(self._costs(1, holdable), nodes)
            best: Found | None = None
            for _, found in sorted(by_count.items()):
                if best is None or found.total < best.total * (1 - 1e-9):
                    best = found
            return best
        return fastest(
            lambda count: self._costs(crowd(streams, count).rows, holdable),
            lambda count: crowd(streams, count).groups,
            nodes,
        )

    def _costs(self, rows: int, holdable: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Costs:
        seconds = np.stack([self._seconds(node, rows) for node in self._nodes])
        names, network = [node.name for node in self._nodes], self._network
        size = rows * self._model.width * self._demand.value_bytes
        return Costs(
            stage=np.where(holdable, seconds, np.inf),
            entering=np.array([network.between(COORDINATOR, name).crossing(size) for name in names]),
            leaving=np.array([network.between(name, COORDINATOR).crossing(0) for name in names]),
            between=np.array(
                [[network.between(a, b).crossing(size) if a != b else np.inf for b in names] for a in names]
            ),
            needed=self._needed,
            ordered=self._ordered,
        )

    @property
    def _needed(self) -> frozenset[int]:
        return frozenset(index for index, node in enumerate(self._nodes) if node.layers is not None)

    def _seconds(self, node: Node, rows: int) -> Times:
        """`prediction.stage_seconds` of all ranges at once."""
        row = node.layer_seconds + (rows - 1) * node.further_row_seconds
        positions = rows * self._demand.depth * node.position_seconds
        head = rows * head_seconds(self._model, node)
        seconds = node.iteration_seconds + self._share * row + self._count * positions
        return np.asarray(seconds + np.where(self._last, head, 0.0))

    def refusal(self) -> str:
        """Why nothing fits: of all placements the one that lacks least, and what each of its nodes lacks."""
        usable = np.array([node.usable_bytes for node in self._nodes], np.float64)
        lacking = np.maximum(0.0, self._needs - usable[:, None, None])
        nowhere = np.zeros(len(self._nodes))
        costs = Costs(
            stage=np.where(self._allowed, lacking, np.inf),
            entering=nowhere,
            leaving=nowhere,
            between=np.zeros((len(self._nodes), len(self._nodes))),
            needed=self._needed,
            ordered=self._ordered,
        )
        found = min(cheapest(costs, len(self._nodes)).values(), key=lambda found: found.total, default=None)
        if found is None:
            return (
                "no placement has the ranges that nodes are fixed to: together with what the other nodes can take "
                f"they must cover the layers 0-{self._model.layers} once, and cuts must be possible there"
            )
        parts = []
        for index, start, end in found.stages:
            node, need = self._nodes[index], self._needs[start, end]
            if lack := float(lacking[index, start, end]):
                parts.append(
                    f"{node.name} lacks {_size(lack)} (layers {start}-{end} need {_size(need)}, it may use "
                    f"{_size(node.usable_bytes)})"
                )
        return (
            f"{self._model.model_id} does not fit: with the placement that lacks least, {'; '.join(parts)}. Add a "
            "node, use fewer slots (--slots) or a shorter context (--context), or requantise the model."
        )

    def limit(self, found: Found, stages: Sequence[PlacedStage], prediction: Prediction) -> str:
        """What keeps this placement from being faster."""
        relaxed = found if (self.fits() == self._allowed).all() else self.fastest(self._allowed)
        assert relaxed is not None
        groups = crowd(self._demand.streams, len(stages)).groups
        others = crowd(self._demand.streams, len(relaxed.stages)).groups
        value = max(found.total, groups * found.slowest)
        if max(relaxed.total, others * relaxed.slowest) < (1 - FULL) * value:
            layer = max(self._model.layer_bytes)
            layer += self._demand.slots * self._demand.cells * max(self._model.position_bytes)
            full = [stage.node for stage in stages if stage.usable_bytes - stage.memory.total < layer]
            return f"memory of {', '.join(full) or 'every node'}"
        slowest = max(range(len(stages)), key=prediction.stage_seconds.__getitem__)
        if groups * prediction.stage_seconds[slowest] >= prediction.period:
            return f"compute of {stages[slowest].node}, which is always busy"
        if prediction.link_seconds > prediction.period / 2:
            return f"links: {prediction.link_seconds / prediction.period:.0%} of a trip"
        share = prediction.stage_seconds[slowest] / prediction.period
        return f"compute of {stages[slowest].node}: {share:.0%} of a trip"


def _placed(model: ModelShape, demand: Demand, node: Node, start: int, end: int) -> PlacedStage:
    return PlacedStage(
        node.name, node.address, start, end, stage_memory(model, demand, start, end), node.usable_bytes
    )


def _size(count: float) -> str:
    return f"{count / (1 << 30):.2f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"
