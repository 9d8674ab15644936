"""Token trees: which nodes to verify, which path was accepted, and what to run again.

A tree holds continuations that exclude each other, so that one pass over the stages finds the longest one that the
target agrees with. Only a runtime with shared KV can run one, and only one is in flight for a sequence.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from longspan.speculate.depth import Conditions

BREADTH = 8
BRANCHES = 8
DEPTH = 6
"""At each of six depths the eight likeliest nodes are expanded by their eight likeliest tokens. Measured on the
demo model, trees of 8, 16, 32 and 64 such nodes give 3.2, 3.6, 4.0 and 4.25 tokens a traversal; chains of four 2.7.
"""

ROOT = -1

Candidates = Sequence[tuple[int, float]]
"""(token, probability after its path) of the tokens that may follow a path, the likeliest first."""

Expand = Callable[[Sequence[tuple[int, ...]]], Sequence[Candidates]]
"""Candidates for each of several paths; a path is the tokens from the first draft on, () for the root itself."""


class Tree(NamedTuple):
    """Draft nodes in topological order; the root, the last committed token, is not one of them.

    tokens: of the nodes. parents: index of each node's parent, or ROOT. chances: probability of the whole path to
    each.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    chances: tuple[float, ...]


NO_TREE = Tree((), (), ())


class _Node(NamedTuple):
    """One possible draft. chance: of the path that ends with it."""

    chance: float
    path: tuple[int, ...]
    parent: int
    token: int


def grow(
    expand: Expand, nodes: int, *, breadth: int = BREADTH, branches: int = BRANCHES, depth: int = DEPTH
) -> Tree:
    """The `nodes` likeliest nodes among those found level by level.

    At each depth the `breadth` likeliest nodes of that level are expanded by their `branches` likeliest tokens. A
    node is never likelier than its parent, so a chosen node's parent is chosen too; equally likely ones go in the
    order in which they were found.
    """
    found: list[_Node] = []
    level: list[tuple[int, tuple[int, ...], float]] = [(ROOT, (), 1.0)]
    for _ in range(depth):
        lists = expand([path for _, path, _ in level])
        first = len(found)
        for (parent, path, chance), candidates in zip(level, lists, strict=True):
            found += [
                _Node(chance * min(1.0, share), (*path, token), parent, token)
                for token, share in candidates[:branches]
                if share > 0
            ]
        likeliest = heapq.nlargest(breadth, range(first, len(found)), key=lambda index: found[index].chance)
        # What would be found below a node that is less likely than enough others could not be chosen.
        needed = heapq.nlargest(nodes, (node.chance for node in found))
        least = needed[-1] if needed and len(needed) == nodes else 0.0
        hopeful = [index for index in likeliest if found[index].chance > least]
        level = [(index, found[index].path, found[index].chance) for index in hopeful]
        if not level:
            break
    whole = Tree(
        tuple(node.token for node in found),
        tuple(node.parent for node in found),
        tuple(node.chance for node in found),
    )
    return pruned(whole, nodes)


def grow_from_levels(levels: Sequence[Candidates], nodes: int) -> Tree:
    """The tree of candidates that depend on the depth alone, as parallel heads give them."""
    depths = iter(levels)

    def expand(paths: Sequence[tuple[int, ...]]) -> Sequence[Candidates]:
        candidates = next(depths)
        return [candidates] * len(paths)

    return grow(expand, nodes, depth=len(levels))


def best_size(chances: Sequence[float], again: int, conditions: Conditions) -> int:
    """How many of a tree's nodes to send: as many as raise the tokens a second.

    chances: of the paths to the nodes, in any order; their sum is the number of drafts that will be accepted.
    again: rows of the span beside them.
    """
    best, best_rate, tokens = 0, 0.0, 1.0
    for size, chance in enumerate((0.0, *sorted(chances, reverse=True))):
        tokens += chance
        width = again + size
        if width > max(again, conditions.widest):
            break
        rate = tokens / max(conditions.trip(width), conditions.turn(width))
        if rate > best_rate:
            best, best_rate = size, rate
    return best


def pruned(tree: Tree, size: int) -> Tree:
    """The `size` likeliest nodes of a tree, in their order; a node counts as no likelier than its parent."""
    if size >= len(tree.tokens):
        return tree
    chances: list[float] = []
    for chance, parent in zip(tree.chances, tree.parents, strict=True):
        chances.append(chance if parent == ROOT else min(chance, chances[parent]))
    chosen = sorted(sorted(range(len(chances)), key=lambda index: (-chances[index], index))[:size])
    place = dict(zip(chosen, count()))
    return Tree(
        tuple(tree.tokens[index] for index in chosen),
        tuple(place[parent] if (parent := tree.parents[index]) != ROOT else ROOT for index in chosen),
        tuple(tree.chances[index] for index in chosen),
    )


def path_to(tree: Tree, node: int) -> tuple[int, ...]:
    """Tokens from the first draft to this node; () for the root."""
    path: list[int] = []
    while node != ROOT:
        path.append(tree.tokens[node])
        node = tree.parents[node]
    return tuple(reversed(path))


def grafted(tree: Tree, node: int, tokens: Sequence[int], chances: Sequence[float]) -> Tree:
    """The tree with a chain of tokens behind a node or the root; `chances`: of the whole path to each.

    Where a node of the tree holds the token already, the likelier of both estimates stands.
    """
    parents, held, likely = list(tree.parents), list(tree.tokens), list(tree.chances)
    children = {(parent, token): index for index, (parent, token) in enumerate(zip(parents, held, strict=True))}
    for token, chance in zip(tokens, chances, strict=True):
        found = children.get((node, token))
        if found is None:
            parents.append(node)
            held.append(token)
            likely.append(chance)
            node = len(held) - 1
        else:
            likely[found] = max(likely[found], chance)
            node = found
    return Tree(tuple(held), tuple(parents), tuple(likely))


def is_tree(tree: Tree, vocabulary: int) -> bool:
    """Whether drafts from elsewhere are a tree: tokens below `vocabulary`, parents before children, and chances."""
    size = len(tree.tokens)
    return (
        size == len(tree.parents) == len(tree.chances)
        and all(0 <= token < vocabulary for token in tree.tokens)
        and all(ROOT <= parent < node for node, parent in enumerate(tree.parents))
        and all(0.0 <= chance <= 1.0 for chance in tree.chances)
    )


def span_rows(again: Sequence[int], tree: Tree) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(tokens, parents) of a tree span: the committed tokens to run again as a chain, then the tree behind them.

    again: the last committed token, and before it those accepted by the tree before, so that their KV comes to lie
    in order; at least one.
    """
    root = len(again) - 1
    chain = range(-1, root)
    return (*again, *tree.tokens), (
        *chain,
        *(root + 1 + parent if parent != ROOT else root for parent in tree.parents),
    )


def accepted_rows(
    tokens: Sequence[int], parents: Sequence[int], root: int, samples: Mapping[int, int]
) -> list[int]:
    """Rows of the accepted path, from row `root` on: its samples are the tokens to commit.

    tokens, parents: of the span. samples: the target's token after each row from the root on. The path goes on as
    long as a child of the row holds the token that was sampled after it. So the rows after the root are accepted
    drafts, and the last one's sample is the target's own token; the next tree span runs all of these again.
    """
    children: dict[tuple[int, int], int] = {}
    for row in range(len(tokens) - 1, root, -1):  # the first of equal children stays
        children[parents[row], tokens[row]] = row
    path = [root]
    while (row := children.get((path[-1], samples[path[-1]]), ROOT)) != ROOT:
        path.append(row)
    return path
