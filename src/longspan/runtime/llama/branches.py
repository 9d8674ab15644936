"""The branches of a token tree as sequences of one shared cache.

A row of a tree belongs to every branch that leads through it, so that each row attends to those before it on its
own branch and to nothing else. Sequence 0 is the slot itself; the branches borrow its cells for one call.
"""

from __future__ import annotations

from collections.abc import Sequence

from longspan.runtime.llama.context import LlamaContext
from longspan.runtime.slots import stem_length

MOST_BRANCHES = 63
"""Leaves of a tree; below the rows of an iteration that are exact, so no tree needs more."""


class Branches:
    """Lends the cells of slot 0 to the branches of a tree. used: how many sequences hold some now."""

    def __init__(self, context: LlamaContext) -> None:
        self._context = context
        self.used = 0

    def lend(self, parents: Sequence[int]) -> list[list[int]]:
        """The sequences of each row of a tree, given by the parent of each; they hold what slot 0 holds.

        The tree has at most MOST_BRANCHES leaves: llama.cpp ends the process for a sequence that it does not have.
        """
        self.take_back()  # those of an earlier tree hold its rows
        sequences = branch_sequences(parents)
        self.used = max(max(row) for row in sequences)
        for sequence in range(1, self.used + 1):
            self._context.share(0, sequence)
        return sequences

    def take_back(self) -> None:
        """Only slot 0 holds cells again; rows that it was not part of are gone."""
        for sequence in range(1, self.used + 1):
            self._context.trim(sequence, 0)
        self.used = 0


def branch_sequences(parents: Sequence[int]) -> list[list[int]]:
    """The sequences that each row of a tree belongs to, numbered from 1 by leaf; rows on the stem have all, and 0.

    parents: index of each row's parent, -1 for the root, in topological order. The stem goes from the root to the
    first fork.
    """
    children: list[list[int]] = [[] for _ in parents]
    for row, parent in enumerate(parents):
        if parent >= 0:
            children[parent].append(row)
    sequences: list[list[int]] = [[] for _ in parents]
    leaf = 0
    for row, below in enumerate(children):
        if not below:
            leaf += 1
            node = row
            while node >= 0:
                sequences[node].append(leaf)
                node = parents[node]
    for row in range(stem_length(parents)):
        sequences[row].insert(0, 0)
    return sequences
