from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.speculate.acceptance import CommonBooks, SequenceBooks
from longspan.speculate.grafts import Grafts
from longspan.speculate.tree import NO_TREE, ROOT, Tree, grafted, is_tree, path_to


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    size = draw(st.integers(0, 8))
    parents = tuple(draw(st.integers(ROOT, node - 1)) for node in range(size))
    chances: list[float] = []
    for parent in parents:
        most = chances[parent] if parent != ROOT else 1.0
        chances.append(draw(st.floats(0, most)))
    tokens = tuple(draw(st.integers(0, 4)) for _ in parents)
    return Tree(tokens, parents, tuple(chances))


def paths_of(tree: Tree) -> set[tuple[int, ...]]:
    return {path_to(tree, node) for node in range(len(tree.tokens))}


@given(tree=trees(), tokens=st.lists(st.integers(0, 4), max_size=6), data=st.data())
def test_a_graft_adds_its_paths_and_takes_none_away(tree: Tree, tokens: list[int], data: st.DataObject) -> None:
    node = data.draw(st.integers(ROOT, len(tree.tokens) - 1))
    chances = [0.9 ** (place + 1) for place in range(len(tokens))]
    whole = grafted(tree, node, tokens, chances)
    before = path_to(tree, node)
    added = {(*before, *tokens[:count]) for count in range(1, len(tokens) + 1)}
    assert paths_of(whole) == paths_of(tree) | added
    assert whole.tokens[: len(tree.tokens)] == tree.tokens
    assert is_tree(whole, 5)


def test_where_both_agree_the_likelier_estimate_stands() -> None:
    tree = Tree((1, 2), (ROOT, 0), (0.8, 0.1))
    assert grafted(tree, ROOT, (1, 2, 3), (0.5, 0.4, 0.3)) == Tree((1, 2, 3), (ROOT, 0, 1), (0.8, 0.4, 0.3))


TEXT = [11, 12, 13, 14, 15, 16, 17, 18]


def test_what_the_text_says_already_goes_on_behind_the_root_and_behind_the_heads_guess() -> None:
    grafts = Grafts(SequenceBooks(CommonBooks()))
    grafts.observe([*TEXT, 99, 12, 13, 14])
    whole = grafts.onto(NO_TREE)
    assert path_to(whole, len(whole.tokens) - 1)[:4] == (15, 16, 17, 18)
    assert list(whole.chances) == sorted(whole.chances, reverse=True)
    other = Grafts(SequenceBooks(CommonBooks()))
    other.observe([*TEXT, 99, 12, 13])
    both = other.onto(Tree((50, 14), (ROOT, ROOT), (0.6, 0.3)))
    assert (14, 15, 16) in paths_of(both)
    assert (50,) in paths_of(both)


def test_a_text_without_repeats_leaves_the_tree_alone() -> None:
    grafts = Grafts(SequenceBooks(CommonBooks()))
    grafts.observe(TEXT)
    tree = Tree((1, 2), (ROOT, 0), (0.8, 0.1))
    assert grafts.onto(tree) == tree


def test_grafts_that_never_come_true_lose_their_chance() -> None:
    grafts = Grafts(SequenceBooks(CommonBooks()))
    grafts.observe([1, 2, 3])
    first = last = 0.0
    for place in range(60):
        grafts.observe([1000 + place, 1, 2, 3])
        tree = grafts.onto(NO_TREE)
        last = tree.chances[0]
        first = first or last
    assert last < 0.5 * first


def test_grafts_that_come_true_gain() -> None:
    books = SequenceBooks(CommonBooks())
    grafts = Grafts(books)
    grafts.observe(TEXT * 2)
    before = grafts.onto(NO_TREE).chances[3]
    for _ in range(20):
        grafts.onto(NO_TREE)
        grafts.observe(TEXT)
    assert grafts.onto(NO_TREE).chances[3] > before


def test_a_graft_behind_a_path_is_judged_only_where_the_path_was_right() -> None:
    books = SequenceBooks(CommonBooks())
    grafts = Grafts(books)
    grafts.observe([*TEXT, 99, 12, 13])
    grafts.onto(Tree((14,), (ROOT,), (0.9,)))
    chance = grafts.onto(Tree((14,), (ROOT,), (0.9,))).chances
    grafts.observe([70])
    grafts.observe([12, 13])
    assert grafts.onto(Tree((14,), (ROOT,), (0.9,))).chances == pytest.approx(chance, rel=0.2)
