"""N-gram continuations on the tree of an MTP head: what the text says already, beside what the head guesses."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from longspan.speculate.acceptance import SequenceBooks
from longspan.speculate.composite import named
from longspan.speculate.ngram_edit import NgramEdit
from longspan.speculate.proposer import Draft
from longspan.speculate.tree import ROOT, Tree, grafted, path_to

LIMBS = 4
"""Nodes of the head's tree, the likeliest, behind which a continuation is looked for, besides the root."""

LENGTH = 16
"""Most nodes of one continuation."""


class Grafts:
    """Of one sequence.

    books: what the chance of a continuation is judged by, and where it is recorded.
    """

    def __init__(self, books: SequenceBooks) -> None:
        self._books = books
        self._proposer = NgramEdit()
        self._made: list[tuple[tuple[int, ...], Draft]] = []  # paths of the last tree, and the drafts behind them

    def observe(self, committed: Sequence[int]) -> None:
        """More committed tokens: what was grafted before them comes true or not."""
        for path, draft in self._made:
            if tuple(committed[: len(path)]) == path:
                self._books.judge(draft, committed[len(path) :])
        self._made.clear()
        self._proposer.observe(committed)

    def onto(self, tree: Tree) -> Tree:
        """The tree of the head with continuations of what is committed, and of the head's likeliest paths."""
        limbs = heapq.nlargest(LIMBS, range(len(tree.tokens)), key=lambda node: (tree.chances[node], -node))
        whole = tree
        self._made.clear()
        for node in (ROOT, *limbs):
            path = path_to(tree, node)
            if any((*before, *draft.tokens)[: len(path)] == path for before, draft in self._made):
                continue  # the continuation of an earlier one goes the same way
            draft = named(self._proposer.propose(path, LENGTH), self._proposer)
            if not draft.tokens:
                continue
            self._made.append((path, draft))
            chance = tree.chances[node] if node != ROOT else 1.0
            chances = accumulate(self._books.chances(draft), mul, initial=chance)
            whole = grafted(whole, node, draft.tokens, list(chances)[1:])
        return whole
