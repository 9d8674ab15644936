from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.sampling.draw import mix
from longspan.schedule.request import SequenceRequest
from longspan.schedule.sequence import Sequence
from longspan.schedule.span import Phase, Sample, Span
from longspan.speculate.acceptance import CommonBooks, SequenceBooks
from longspan.speculate.grafts import Grafts
from longspan.speculate.ledger import Ledger
from longspan.speculate.tree import ROOT, Tree
from longspan.speculate.tree_windows import TreeWindows

VOCABULARY = 5


def target(history: tuple[int, ...]) -> int:
    state = 17
    for token in history:
        state = mix(state * 31 + token) & ((1 << 64) - 1)
    return mix(state) % VOCABULARY


class TreeStage:
    """A stage with shared KV: rows lie in the order in which they came, and only positions in order stay."""

    def __init__(self) -> None:
        self.kept: list[int] = []

    def run(self, span: Span) -> tuple[Sample, ...]:
        assert span.start <= len(self.kept), "the span starts behind what lies in order"
        del self.kept[span.start :]
        parents = span.parents or range(-1, len(span.tokens) - 1)

        def history(row: int) -> tuple[int, ...]:
            before = history(parents[row]) if parents[row] >= 0 else tuple(self.kept)
            return (*before, span.tokens[row])

        samples = tuple(Sample(0, row, target(history(row))) for row in span.sample_rows)
        in_order = next((row for row in range(len(span.tokens)) if parents[row] != row - 1), len(span.tokens))
        self.kept += span.tokens[:in_order]
        return samples


def serial(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(target(tuple(tokens)))
    return tokens


def started(prompt: list[int], max_tokens: int, end_tokens: frozenset[int] = frozenset()) -> TreeWindows:
    request = SequenceRequest(prompt=tuple(prompt), max_tokens=max_tokens, end_tokens=end_tokens)
    sequence = Sequence(3, request, 0.0, 10_000)
    return TreeWindows(sequence, Ledger(), VOCABULARY, Grafts(SequenceBooks(CommonBooks())))


@settings(deadline=None, max_examples=60)
@given(data=st.data(), prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=5))
def test_trees_commit_what_the_target_gives_alone(data: st.DataObject, prompt: list[int]) -> None:
    count = 25
    windows = started(prompt, count)
    sequence, stage = windows.sequence, TreeStage()
    truth = serial(prompt, count)
    span = sequence.prefill_span(len(prompt))
    windows.commit(span, stage.run(span))
    while not sequence.ended:
        size = data.draw(st.integers(0, 8))
        parents = tuple(data.draw(st.integers(ROOT, node - 1)) for node in range(size))
        hope = truth[len(sequence.tokens) :]
        depths: list[int] = []
        for parent in parents:
            depths.append(depths[parent] + 1 if parent != ROOT else 0)
        tokens = tuple(
            hope[depth] if depth < len(hope) and data.draw(st.booleans()) else data.draw(st.integers(0, 4))
            for depth in depths
        )
        if data.draw(st.booleans()):  # else what was grafted is sent
            windows.receive(Tree(tokens, parents, (1.0,) * size))
        if data.draw(st.integers(0, 9)) == 0:  # preempted: the KV is gone, and replayed elsewhere
            sequence.rewind()
            windows.forget()
            stage = TreeStage()
            replay = sequence.prefill_span(sequence.prefill_remaining)
            windows.commit(replay, stage.run(replay))
        again = windows.again
        sent = windows.next_span(size)
        assert sent is not None
        assert windows.next_span(size) is None, "only one tree may be in flight"
        assert len(sent.tokens) <= again + size
        committed = windows.commit(sent, stage.run(sent))
        assert sequence.tokens == truth[: len(sequence.tokens)]
        assert committed and sequence.computed <= sequence.dispatched == len(sequence.tokens) - 1
    assert sequence.tokens == truth
    assert windows.next_span(4) is None


def test_an_end_token_inside_a_branch_ends_the_answer() -> None:
    prompt = [1, 2]
    truth = serial(prompt, 4)
    windows = started(prompt, 10, frozenset({truth[4]}))
    stage = TreeStage()
    span = windows.sequence.prefill_span(2)
    windows.commit(span, stage.run(span))
    windows.receive(Tree(tuple(truth[3:6]), (ROOT, 0, 1), (1.0,) * 3))
    sent = windows.next_span(3)
    assert sent is not None and sent.phase is Phase.VERIFY
    committed = windows.commit(sent, stage.run(sent))
    expected = truth[3 : truth.index(truth[4], 2) + 1]
    assert [sample.token for sample in committed] == expected
    assert windows.sequence.ended and windows.sequence.stopped


def test_without_a_tree_it_decodes() -> None:
    windows = started([1], 3)
    stage = TreeStage()
    span = windows.sequence.prefill_span(1)
    windows.commit(span, stage.run(span))
    sent = windows.next_span(5)
    assert sent is not None
    assert (sent.phase, sent.parents, len(sent.tokens)) == (Phase.DECODE, None, 1)


@pytest.mark.parametrize("nodes", [0, 1, 3])
def test_a_tree_is_cut_to_the_rows_there_are(nodes: int) -> None:
    windows = started([1], 9)
    stage = TreeStage()
    span = windows.sequence.prefill_span(1)
    windows.commit(span, stage.run(span))
    windows.receive(Tree((1, 2, 3, 4), (ROOT, 0, 0, ROOT), (0.5, 0.2, 0.1, 0.4)))
    sent = windows.next_span(nodes)
    assert sent is not None
    assert len(sent.tokens) == 1 + nodes


@pytest.mark.parametrize(
    ("draft", "parents", "chances"),
    [
        ((1, VOCABULARY), (ROOT, 0), (0.5, 0.2)),
        ((1, -1), (ROOT, 0), (0.5, 0.2)),
        ((1, 2), (ROOT, 1), (0.5, 0.2)),
        ((1, 2), (-2, 0), (0.5, 0.2)),
        ((1, 2), (ROOT,), (0.5, 0.2)),
        ((1, 2), (ROOT, 0), (0.5,)),
        ((1, 2), (ROOT, 0), (0.5, float("nan"))),
        ((1, 2), (ROOT, 0), (0.5, 2.0)),
    ],
)
def test_drafts_that_are_no_tree_are_not_sent(
    draft: tuple[int, ...], parents: tuple[int, ...], chances: tuple[float, ...]
) -> None:
    """They come from a stage; one that errs costs its drafts and nothing else."""
    windows = started([1], 9)
    span = windows.sequence.prefill_span(1)
    assert windows.commit(span, (Sample(0, 0, 2, None, draft, parents, chances),))
    sent = windows.next_span(5)
    assert sent is not None and sent.tokens == (2,)
    committed = windows.commit(sent, (Sample(0, 0, 3, None, (1, 2), (ROOT, 0), (0.5, 0.2)),))
    assert committed and windows.tree.tokens == (1, 2)


@pytest.mark.parametrize("left", [1, 2, 4])
def test_a_tree_is_cut_to_what_the_answer_may_still_have(left: int) -> None:
    windows = started([1], 1 + left)
    stage = TreeStage()
    span = windows.sequence.prefill_span(1)
    windows.commit(span, stage.run(span))
    windows.receive(Tree((1, 2, 3, 4), (ROOT, ROOT, ROOT, ROOT), (0.4, 0.3, 0.2, 0.1)))
    sent = windows.next_span(5)
    assert sent is not None and len(sent.tokens) == left, "a slot has no cell for more"
