"""A tree of drafts, grown with an MTP head level by level."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from longspan.runtime.llama.head_context import Array, HeadContext
from longspan.speculate.tree import BREADTH, DEPTH, Candidates, Tree, grow

TREE_NODES = 24
"""Most nodes of a tree that is sent to the coordinator, which takes as many of them as pay."""

TREE_FORKS = BREADTH * (DEPTH - 1)
"""Slots of the head that a tree needs besides the sequence's own: one for each node that is expanded."""

Likeliest = Callable[[Array, Array], Candidates]
"""(hidden state after a node, logits of the common tokens there) -> the likeliest tokens to follow."""


class HeadTree:
    """Grows one tree behind the rows that `slot` holds. forks: TREE_FORKS empty slots."""

    def __init__(self, head: HeadContext, slot: int, forks: Sequence[int]) -> None:
        self._head = head
        self._forks = forks
        self._free = iter(forks)
        self._slots: dict[tuple[int, ...], int] = {(): slot}
        self._states: dict[tuple[int, ...], Array] = {}

    def grow(self, state: Array, logits: Array, likeliest: Likeliest, nodes: int = TREE_NODES) -> Tree:
        """The tree behind the last row, whose hidden state and logits are given. The forks are empty afterwards."""
        self._states[()] = state

        def expand(paths: Sequence[tuple[int, ...]]) -> list[Candidates]:
            if paths == [()]:
                return [likeliest(state, logits)]
            found, states = self._run(paths)
            self._states.update(zip(paths, states, strict=True))
            return [likeliest(after, scores) for after, scores in zip(states, found, strict=True)]

        try:
            return grow(expand, nodes)
        finally:
            for fork in self._forks:
                self._head.trim(fork, 0)

    def _run(self, paths: Sequence[tuple[int, ...]]) -> tuple[Array, Array]:
        """(logits, hidden states) after the last token of each path; the paths without it were run before."""
        forks = list(itertools.islice(self._free, len(paths)))
        for path, fork in zip(paths, forks, strict=True):
            self._head.fork(self._slots[path[:-1]], fork)
            self._slots[path] = fork
        hidden = np.stack([self._states[path[:-1]] for path in paths])
        return self._head.run([path[-1] for path in paths], hidden, forks, range(len(paths)))
