from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from longspan.sampling.draw import mix
from longspan.speculate.depth import Conditions
from longspan.speculate.tree import (
    ROOT,
    Candidates,
    Tree,
    accepted_rows,
    best_size,
    grow,
    grow_from_levels,
    path_to,
    pruned,
    span_rows,
)


def candidates_of(seed: int, tokens: int) -> Candidates:
    """A distribution over `tokens` tokens, a function of the seed, the likeliest first."""
    weights = [(mix(seed * 1000 + token) % 997 + 1) ** 3 for token in range(tokens)]
    total = sum(weights)
    return sorted(((token, weight / total) for token, weight in enumerate(weights)), key=lambda pair: -pair[1])


def path_seed(seed: int, path: tuple[int, ...]) -> int:
    for token in path:
        seed = mix(seed + token + 1) % 100_003
    return seed


def all_paths(seed: int, tokens: int, breadth: int, branches: int, depth: int) -> dict[tuple[int, ...], float]:
    """Probability of every path that the rule looks at, found by walking level after level over all of them."""
    found: dict[tuple[int, ...], float] = {}
    level: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(depth):
        children = {
            (*path, token): chance * share
            for path, chance in level.items()
            for token, share in candidates_of(path_seed(seed, path), tokens)[:branches]
        }
        found |= children
        level = dict(sorted(children.items(), key=lambda item: -item[1])[:breadth])
    return found


@given(
    seed=st.integers(0, 10_000),
    tokens=st.integers(1, 6),
    nodes=st.integers(0, 40),
    breadth=st.integers(1, 4),
    branches=st.integers(1, 4),
    depth=st.integers(1, 4),
)
def test_a_tree_holds_the_likeliest_paths_of_all(
    seed: int, tokens: int, nodes: int, breadth: int, branches: int, depth: int
) -> None:
    def expand(paths: Sequence[tuple[int, ...]]) -> list[Candidates]:
        return [candidates_of(path_seed(seed, path), tokens) for path in paths]

    tree = grow(expand, nodes, breadth=breadth, branches=branches, depth=depth)
    every = all_paths(seed, tokens, breadth, branches, depth)
    chosen = {path_to(tree, node): tree.chances[node] for node in range(len(tree.tokens))}
    assert len(chosen) == min(nodes, len(every))
    assert all(abs(every[path] - chance) < 1e-12 for path, chance in chosen.items())
    left = [chance for path, chance in every.items() if path not in chosen]
    assert not left or not chosen or min(chosen.values()) >= max(left) - 1e-12


@given(seed=st.integers(0, 10_000), nodes=st.integers(0, 30), size=st.integers(0, 30))
def test_trees_are_in_order_and_pruning_keeps_the_likeliest(seed: int, nodes: int, size: int) -> None:
    levels = [candidates_of(seed + depth, 5) for depth in range(4)]
    tree = grow_from_levels(levels, nodes)
    smaller = pruned(tree, size)
    for each in (tree, smaller):
        assert all(parent < node for node, parent in enumerate(each.parents))
        for node, parent in enumerate(each.parents):
            assert parent == ROOT or each.chances[parent] >= each.chances[node]
    assert smaller == grow_from_levels(levels, min(size, nodes))


def test_a_node_that_claims_more_than_its_parent_is_not_sent_without_it() -> None:
    tree = Tree((5, 6, 7), (ROOT, 0, ROOT), (0.1, 0.9, 0.2))
    assert pruned(tree, 1) == Tree((7,), (ROOT,), (0.2,))
    assert pruned(tree, 2) == Tree((5, 7), (ROOT, ROOT), (0.1, 0.2))


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Trees without equal children of one node, as growing makes them."""
    nodes: dict[tuple[int, int], None] = {}
    for _ in range(draw(st.integers(0, 20))):
        nodes[draw(st.integers(ROOT, len(nodes) - 1)), draw(st.integers(0, 3))] = None
    return Tree(tuple(token for _, token in nodes), tuple(parent for parent, _ in nodes), (1.0,) * len(nodes))


@given(tree=trees(), again=st.lists(st.integers(0, 3), min_size=1, max_size=4), seed=st.integers(0, 1000))
def test_the_accepted_path_is_the_longest_that_the_target_agrees_with(
    tree: Tree, again: list[int], seed: int
) -> None:
    def target(path: tuple[int, ...]) -> int:
        return mix(path_seed(seed, path)) % 4

    tokens, parents = span_rows(again, tree)
    root = len(again) - 1
    assert tokens[: root + 1] == tuple(again)
    assert list(parents[: root + 1]) == list(range(-1, root))

    def path_to(row: int) -> tuple[int, ...]:
        return () if row == root else (*path_to(parents[row]), tokens[row])

    samples = {row: target(path_to(row)) for row in range(root, len(tokens))}
    path = accepted_rows(tokens, parents, root, samples)

    answer: list[int] = []
    while len(answer) < 30:
        answer.append(target(tuple(answer)))
    paths = {path_to(row) for row in range(root, len(tokens))}
    longest = max(length for length in range(len(tokens)) if tuple(answer[:length]) in paths)
    assert [samples[row] for row in path] == answer[: longest + 1]
    assert path_to(path[-1]) == tuple(answer[:longest])


def test_a_tree_is_larger_where_a_trip_is_long() -> None:
    chances = [0.8 * 0.85**node for node in range(40)]
    near = Conditions([0.003 + 0.0012 * rows for rows in range(65)], 1.0, 0.0, 63)
    far = near._replace(link=0.2)
    sizes = [best_size(chances, 1, conditions) for conditions in (near, far)]
    assert 0 < sizes[0] < sizes[1] <= 40
    # Neither one node more nor one less would be better.
    for conditions, size in zip((near, far), sizes, strict=True):
        rates = [(1 + sum(chances[:count])) / conditions.trip(1 + count) for count in range(41)]
        assert max(rates) == rates[size]


def test_a_tree_leaves_room_for_the_rest_of_its_group() -> None:
    crowded = Conditions([0.003] * 65, 1.0, 0.2, rows=63, sequences=8, group=8)
    assert best_size([0.9] * 40, 1, crowded) == 63 // 8 - 1
