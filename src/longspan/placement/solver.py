"""The exact search: which nodes in which order hold which layers, by dynamic programming.

State: the set of nodes used so far, the last of them, and the layers that they hold together, [0, e). The next node
takes [e, e'). All cuts of one step are tried at once, as a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]

MOST_NODES = 8
"""With more nodes than these their order is taken as it is given: the search goes through every set of them."""


class Costs(NamedTuple):
    """What is added up, infinite where it is not possible.

    stage: (nodes, layers + 1, layers + 1), what a node takes for the layers [start, end). entering, leaving:
    (nodes,), links from and to the coordinator. between: (nodes, nodes), from one to the next. needed: nodes that
    must hold layers. ordered: nodes follow each other by their number.
    """

    stage: Times
    entering: Times
    leaving: Times
    between: Times
    needed: frozenset[int]
    ordered: bool


class Found(NamedTuple):
    """total: of stages and links. stages: (node, start, end) in order. slowest: largest cost of one stage."""

    total: float
    stages: tuple[tuple[int, int, int], ...]
    slowest: float


def cheapest(costs: Costs, most: int) -> dict[int, Found]:
    """The cheapest placements with 1, 2, … `most` stages, as far as there are any."""
    search = _Ordered(costs) if costs.ordered else _AnyOrder(costs)
    return search.run(most)


def fastest(costs_of: Callable[[int], Costs], groups_of: Callable[[int], int], most: int) -> Found | None:
    """The placement with the smallest max(total, groups * slowest), of those with up to `most` stages.

    costs_of, groups_of: by number of stages; the number of stages says how many streams share an iteration.
    Of equally good placements one with the fewest stages.
    """
    best: Found | None = None
    bound = math.inf
    for count in range(1, most + 1):
        found = _fastest_with(costs_of(count), groups_of(count), count, bound)
        if found is None:
            continue
        value = max(found.total, groups_of(count) * found.slowest)
        if value < bound * (1 - 1e-9):
            best, bound = found, value
    return best


def _fastest_with(costs: Costs, groups: int, count: int, bound: float) -> Found | None:
    """As `fastest` with exactly `count` stages; None also when none is below `bound`.

    Let f(t) be the smallest total when no stage takes more than t. It falls with t while groups * t rises, so the
    best lies where they cross: at the first t with f(t) <= groups * t, or at the last one before.
    """
    loosest = cheapest(costs, count).get(count)
    if loosest is None or loosest.total >= bound:
        return None
    if loosest.total >= groups * loosest.slowest:
        return loosest
    limits = np.unique(costs.stage[np.isfinite(costs.stage)])
    within: dict[int, Found | None] = {}

    def below(index: int) -> Found | None:
        """The cheapest when no stage takes more than limits[index]."""
        if index not in within:
            stage = np.where(costs.stage <= limits[index], costs.stage, np.inf)
            within[index] = cheapest(costs._replace(stage=stage), count).get(count)
        return within[index]

    # Never below f(infinity) / groups, and from the loosest placement's own slowest stage on f falls no more.
    low = int(np.searchsorted(limits, loosest.total / groups))
    high = int(np.searchsorted(limits, loosest.slowest))
    while low < high:
        middle = (low + high) // 2
        found = below(middle)
        if found is not None and found.total <= groups * limits[middle]:
            high = middle
        else:
            low = middle + 1
    candidates = [found for index in (low, low - 1) if index >= 0 and (found := below(index)) is not None]
    return min(candidates, key=lambda found: max(found.total, groups * found.slowest))


class _AnyOrder:
    """Every set of nodes, in every order."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        nodes, size, _ = costs.stage.shape
        self._nodes = nodes
        self._layers = size - 1
        sets = 1 << nodes
        self._best = np.full((sets, nodes, size), np.inf)
        self._node_before = np.zeros((sets, nodes, size), np.int8)
        self._cut = np.zeros((sets, nodes, size), np.int16)
        self._needed = sum(1 << node for node in costs.needed)

    def run(self, most: int) -> dict[int, Found]:
        """See `cheapest`."""
        costs, best = self._costs, self._best
        every = np.arange(self._layers + 1)
        for node in range(self._nodes):
            best[1 << node, node] = costs.entering[node] + costs.stage[node, 0]
        for used in range(1, 1 << self._nodes):
            if used.bit_count() >= most or not np.isfinite(best[used]).any():
                continue
            for node in range(self._nodes):
                if used >> node & 1:
                    continue
                arriving = best[used] + costs.between[:, node, None]
                before = arriving.argmin(0)
                total = arriving[before, every][:, None] + costs.stage[node]
                cut = total.argmin(0)
                after = used | 1 << node
                best[after, node] = total[cut, every]
                self._node_before[after, node] = before[cut]
                self._cut[after, node] = cut
        return self._by_count(most)

    def _by_count(self, most: int) -> dict[int, Found]:
        ends = self._best[:, :, self._layers] + self._costs.leaving
        found: dict[int, tuple[float, int, int]] = {}
        for used in range(1, 1 << self._nodes):
            count = used.bit_count()
            if count > most or used & self._needed != self._needed:
                continue
            last = int(ends[used].argmin())
            total = float(ends[used, last])
            if total < found.get(count, (math.inf,))[0]:
                found[count] = (total, used, last)
        return {count: self._walk_back(*way) for count, way in found.items()}

    def _walk_back(self, total: float, used: int, node: int) -> Found:
        stages: list[tuple[int, int, int]] = []
        end = self._layers
        while True:
            single = used == 1 << node
            start = 0 if single else int(self._cut[used, node, end])
            stages.insert(0, (node, start, end))
            if single:
                return _found(self._costs, total, stages)
            before = int(self._node_before[used, node, end])
            used, node, end = used & ~(1 << node), before, start


class _Ordered:
    """Nodes in the order of their numbers; any that nobody needs may be left out."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._nodes, size, _ = costs.stage.shape
        self._layers = size - 1

    def run(self, most: int) -> dict[int, Found]:
        """See `cheapest`."""
        costs, nodes = self._costs, self._nodes
        every = np.arange(self._layers + 1)
        needed = sorted(costs.needed)
        first_allowed = needed[0] if needed else nodes - 1
        best = np.full((nodes, self._layers + 1), np.inf)
        for node in range(first_allowed + 1):
            best[node] = costs.entering[node] + costs.stage[node, 0]
        steps: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        found: dict[int, Found] = {}
        for count in range(1, most + 1):
            ends = best[:, self._layers] + costs.leaving
            if needed:
                ends[: needed[-1]] = np.inf
            last = int(ends.argmin())
            if np.isfinite(ends[last]):
                found[count] = self._walk_back(float(ends[last]), last, steps)
            best, step = self._step(best, needed, every)
            steps.append(step)
        return found

    def _step(
        self, best: Times, needed: list[int], every: npt.NDArray[np.int64]
    ) -> tuple[Times, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """One more stage behind those of `best`."""
        costs = self._costs
        after = np.full_like(best, np.inf)
        befores = np.zeros(best.shape, np.int64)
        cuts = np.zeros(best.shape, np.int64)
        for node in range(1, self._nodes):
            # No node that must hold layers may be passed over.
            lowest = max((other for other in needed if other < node), default=0)
            arriving = best[lowest:node] + costs.between[lowest:node, node, None]
            before = arriving.argmin(0)
            total = arriving[before, every][:, None] + costs.stage[node]
            cut = total.argmin(0)
            after[node] = total[cut, every]
            befores[node] = lowest + before[cut]
            cuts[node] = cut
        return after, (befores, cuts)

    def _walk_back(
        self, total: float, node: int, steps: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]
    ) -> Found:
        stages: list[tuple[int, int, int]] = []
        end = self._layers
        for befores, cuts in reversed(steps):
            start = int(cuts[node, end])
            stages.insert(0, (node, start, end))
            node, end = int(befores[node, end]), start
        stages.insert(0, (node, 0, end))
        return _found(self._costs, total, stages)


def _found(costs: Costs, total: float, stages: list[tuple[int, int, int]]) -> Found:
    return Found(total, tuple(stages), max(float(costs.stage[stage]) for stage in stages))
