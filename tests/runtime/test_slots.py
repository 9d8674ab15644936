"""The books of a stage's slots: what is refused, in what order things happen, and that failures stay local."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.errors import ProtocolError
from longspan.runtime.base import Capacity
from longspan.runtime.slots import MAX_OPERATIONS, KvCopy, KvTrim, SlotBook, stem_length
from longspan.sampling.parameters import SamplingParameters
from longspan.schedule.span import (
    CommitBranch,
    CopyPrefix,
    Drop,
    Iteration,
    Operation,
    Phase,
    SlotSampling,
    Span,
    Trim,
)

SLOTS, CELLS, ROWS = 4, 32, 40
WARM = SamplingParameters(temperature=0.7, seed=3)
NONE: frozenset[int] = frozenset()


def book(*held: list[int]) -> SlotBook:
    """A book whose first slots hold these tokens."""
    made = SlotBook(Capacity(SLOTS, CELLS, ROWS, ROWS + 1))
    spans = tuple(span(slot, 0, *tokens) for slot, tokens in enumerate(held) if tokens)
    made.begin(Iteration(0, (), (), spans), NONE)
    return made


def span(slot: int, start: int, *tokens: int, **changes: Any) -> Span:
    return msgspec.structs.replace(Span(slot, slot, 0, start, tokens, Phase.VERIFY), **changes)


def iteration(
    *spans: Span, operations: tuple[Operation, ...] = (), samplings: tuple[SlotSampling, ...] = ()
) -> Iteration:
    return Iteration(1, operations, samplings, spans)


def test_the_start_of_a_span_trims_its_slot() -> None:
    slots = book([1, 2, 3, 4, 5])
    plan = slots.begin(iteration(span(0, 3, 9)), NONE)
    assert plan.actions == (KvTrim(0, 3),)
    assert slots.tokens[0] == [1, 2, 3, 9]


def test_a_span_at_the_end_trims_nothing() -> None:
    slots = book([1, 2, 3])
    assert slots.begin(iteration(span(0, 3, 9)), NONE).actions == ()


def test_operations_come_in_order_before_samplings_and_spans() -> None:
    slots = book([1, 2, 3], [7, 8])
    plan = slots.begin(
        iteration(
            span(0, 1, 5),
            span(2, 2, 6),
            operations=(CopyPrefix(0, 2, 2), Trim(0, 1), Drop(1)),
            samplings=(SlotSampling(0, WARM),),
        ),
        NONE,
    )
    assert plan.actions == (KvCopy(0, 2, 2), KvTrim(0, 1), KvTrim(1, 0))
    assert slots.tokens[:3] == [[1, 5], [], [1, 2, 6]]
    assert slots.sampling[0] == WARM


def test_the_target_of_a_copy_is_emptied_first() -> None:
    slots = book([1, 2, 3], [7, 8])
    plan = slots.begin(iteration(operations=(CopyPrefix(0, 1, 2),)), NONE)
    assert plan.actions == (KvTrim(1, 0), KvCopy(0, 1, 2))
    assert slots.tokens[1] == [1, 2]


def test_a_copy_of_more_than_there_is_copies_what_there_is() -> None:
    """The span that relies on the rest fails, and only it."""
    slots = book([1, 2, 3])
    plan = slots.begin(iteration(span(0, 3, 4), span(1, 8, 9), operations=(CopyPrefix(0, 1, 8),)), NONE)
    assert plan.actions == (KvCopy(0, 1, 3),)
    assert [index for index, _, _ in plan.runnable] == [0]
    assert [failure.span for failure in plan.failures] == [1]
    assert plan.failures[0].reason == "the span starts at position 8, but slot 1 holds only 3 positions"


def test_a_copy_of_nothing_empties_the_target() -> None:
    slots = book([1], [7, 8])
    plan = slots.begin(iteration(operations=(CopyPrefix(2, 1, 5),)), NONE)
    assert plan.actions == (KvTrim(1, 0),)
    assert slots.tokens[1] == []


def test_dropping_forgets_the_sampling_state_too() -> None:
    slots = book([1, 2])
    slots.begin(iteration(samplings=(SlotSampling(0, WARM),)), NONE)
    slots.begin(iteration(operations=(Drop(0),)), NONE)
    assert slots.sampling[0] == SamplingParameters()
    assert slots.tokens[0] == []


def test_a_new_sequence_in_a_slot_needs_no_operation() -> None:
    slots = book([1, 2, 3, 4])
    plan = slots.begin(iteration(span(0, 0, 8, 9), samplings=(SlotSampling(0, WARM),)), NONE)
    assert plan.actions == (KvTrim(0, 0),)
    assert slots.tokens[0] == [8, 9]
    assert slots.sampling[0] == WARM


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (span(1, 3, 9), "starts at position 3, but slot 1 holds only 2 positions"),
        (span(1, 2, *range(CELLS - 1)), f"ends at position {CELLS + 1}, but a slot holds {CELLS} positions"),
    ],
)
def test_a_span_that_cannot_run_leaves_its_slot_and_the_others_alone(wrong: Span, reason: str) -> None:
    slots = book([1], [7, 8], [5])
    plan = slots.begin(iteration(span(0, 1, 2), wrong, span(2, 1, 6)), NONE)
    assert [(failure.span, reason in failure.reason) for failure in plan.failures] == [(1, True)]
    assert [(index, first) for index, first, _ in plan.runnable] == [(0, 0), (2, 1 + len(wrong.tokens))]
    assert slots.tokens[:3] == [[1, 2], [7, 8], [5, 6]]


def test_a_span_that_failed_before_leaves_its_slot_alone() -> None:
    slots = book([1, 2, 3], [7])
    plan = slots.begin(iteration(span(0, 1, 9), span(1, 1, 8)), frozenset({0}))
    assert plan.actions == ()
    assert plan.failures == ()
    assert [(index, first) for index, first, _ in plan.runnable] == [(1, 1)]
    assert slots.tokens[:2] == [[1, 2, 3], [7, 8]]


def test_a_span_may_end_with_the_last_cell() -> None:
    slots = book(list(range(CELLS - 1)))
    plan = slots.begin(iteration(span(0, CELLS - 1, 9)), NONE)
    assert not plan.failures
    assert plan.runnable


def test_undoing_a_span_says_what_to_trim() -> None:
    slots = book([1, 2])
    wanted = span(0, 1, 5, 6)
    slots.begin(iteration(wanted), NONE)
    assert slots.undo(wanted) == KvTrim(0, 1)
    assert slots.tokens[0] == [1]
    assert slots.begin(iteration(span(0, 1, 7)), NONE).actions == ()


def test_a_slot_that_cannot_be_relied_on_is_emptied() -> None:
    slots = book([1, 2, 3], [7])
    assert slots.forget(0) == KvTrim(0, 0)
    assert slots.tokens[:2] == [[], [7]]
    assert "holds only 0 positions" in slots.begin(iteration(span(0, 3, 4)), NONE).failures[0].reason
    assert slots.begin(iteration(span(0, 0, 5)), NONE).actions == ()


def test_of_a_tree_only_what_lies_before_its_first_fork_takes_positions() -> None:
    slots = book([1, 2])
    tree = span(0, 2, 5, 6, 7, parents=(-1, 0, 0))
    assert slots.begin(iteration(tree), NONE).actions == ()
    assert slots.tokens[0] == [1, 2, 5]
    assert slots.history(tree, 2) == [1, 2, 5, 7]
    assert slots.history(tree, 1) == [1, 2, 5, 6]
    plan = slots.begin(iteration(span(0, 2, 5, 7), operations=(CommitBranch(0, 2, (0, 2)),)), NONE)
    assert plan.actions == (KvTrim(0, 2),), "the branches are cut before the accepted one runs again"
    assert slots.tokens[0] == [1, 2, 5, 7]


@pytest.mark.parametrize(
    ("parents", "length"),
    [
        ((-1,), 1),
        ((-1, 0, 1), 3),
        ((-1, 0, 1, 1), 2),
        ((-1, 0, 0), 1),
        ((-1, 0, 1, 2, 0), 1),
        ((-1, -1), 0),
        ((-1, 0, 1, 2, 2, 3, 4), 3),
    ],
)
def test_the_stem_of_a_tree_ends_with_its_first_fork(parents: tuple[int, ...], length: int) -> None:
    assert stem_length(parents) == length


def test_the_history_of_a_row_ends_with_it() -> None:
    slots = book([1, 2])
    window = span(0, 2, 5, 6, 7)
    slots.begin(iteration(window), NONE)
    assert [slots.history(window, row) for row in range(3)] == [[1, 2, 5], [1, 2, 5, 6], [1, 2, 5, 6, 7]]


MALFORMED: list[tuple[Iteration, str]] = [
    (iteration(span(SLOTS, 0, 1)), "slot 4 does not exist, this stage has slots 0 to 3"),
    (iteration(span(-1, 0, 1)), "slot -1 does not exist"),
    (iteration(span(1, 0, 1), span(0, 0, 1)), "span 1: slot 0 after slot 1; slots must ascend"),
    (iteration(span(0, 0, 1), span(0, 1, 1)), "span 1: slot 0 after slot 0; slots must ascend"),
    (iteration(span(0, 0)), "span 0 has no tokens"),
    (iteration(span(0, -1, 1)), "span 0 starts at position -1"),
    (iteration(span(0, 0, 1, -1)), "span 0 has a negative token"),
    (iteration(span(0, 0, 1, sample_rows=(1,))), "span 0 samples row 1 of 1; rows must ascend and exist"),
    (iteration(span(0, 0, 1, 2, sample_rows=(1, 0))), "samples row 0 of 2"),
    (iteration(span(0, 0, 1, 2, sample_rows=(1, 1))), "samples row 1 of 2"),
    (iteration(span(0, 0, 1, sample_rows=(-1,))), "samples row -1 of 1"),
    (iteration(span(0, 0, 1, 2, parents=(-1,))), "span 0: 1 parents for 2 nodes"),
    (iteration(span(0, 0, 1, 2, parents=(-1, 1))), "or a parent after its child"),
    (iteration(span(0, 0, 1, parents=(-2,))), "or a parent after its child"),
    (iteration(span(0, 0, *[1] * (ROWS + 1))), "41 rows in one iteration, this stage takes at most 40"),
    (iteration(operations=(Drop(0),) * MAX_OPERATIONS), "4097 operations in one iteration, at most 4096"),
    (iteration(operations=(Drop(SLOTS),)), "slot 4 does not exist"),
    (iteration(operations=(Trim(0, -1),)), "negative position"),
    (iteration(operations=(CopyPrefix(0, SLOTS, 1),)), "slot 4 does not exist"),
    (iteration(operations=(CopyPrefix(0, 1, -1),)), "negative position"),
    (iteration(operations=(CopyPrefix(1, 1, 1),)), "copy of slot 1 onto itself"),
    (iteration(operations=(CommitBranch(0, -1, ()),)), "negative position"),
    (iteration(operations=(CommitBranch(0, 1, (-1,)),)), "negative position"),
    (iteration(samplings=(SlotSampling(SLOTS, WARM),)), "slot 4 does not exist"),
]


@pytest.mark.parametrize(("wrong", "message"), MALFORMED)
def test_a_malformed_iteration_is_refused_before_anything_changes(wrong: Iteration, message: str) -> None:
    slots = book([1, 2, 3], [7, 8])
    before = copy.deepcopy((slots.tokens, slots.sampling, slots._cells))
    changed = msgspec.structs.replace(
        wrong, operations=(Drop(0), *wrong.operations), samplings=(SlotSampling(1, WARM), *wrong.samplings)
    )
    with pytest.raises(ProtocolError, match=message):
        slots.begin(changed, NONE)
    assert (slots.tokens, slots.sampling, slots._cells) == before


class Cells:
    """What a runtime's KV would hold if it did what the plans say: the truth that the books must agree with."""

    def __init__(self) -> None:
        self.slots: list[list[int]] = [[] for _ in range(SLOTS)]

    def act(self, actions: tuple[KvTrim | KvCopy, ...]) -> None:
        for action in actions:
            if isinstance(action, KvTrim):
                del self.slots[action.slot][action.keep :]
            else:
                assert self.slots[action.target] == [], "a copy goes into an empty slot only"
                self.slots[action.target] = self.slots[action.source][: action.length]


_slot = st.integers(0, SLOTS - 1)
_operation = st.one_of(
    st.builds(Trim, _slot, st.integers(0, 20)),
    st.builds(Drop, _slot),
    st.builds(CopyPrefix, _slot, _slot, st.integers(0, 20)).filter(lambda copied: copied.source != copied.target),
    st.builds(CommitBranch, _slot, st.integers(0, 20), st.just((0,))),
)
_step = st.tuples(
    st.lists(_operation, max_size=3),
    st.dictionaries(
        _slot, st.tuples(st.integers(0, 20), st.lists(st.integers(0, 9), min_size=1, max_size=6), st.booleans())
    ),
    st.sets(st.integers(0, SLOTS - 1)),
    st.sets(_slot),
)


@settings(deadline=None, max_examples=60)
@given(steps=st.lists(_step, max_size=8))
def test_the_books_agree_with_the_cells_whatever_happens(
    steps: list[tuple[list[Operation], dict[int, tuple[int, list[int], bool]], set[int], set[int]]],
) -> None:
    slots, cells = book(), Cells()
    for operations, wanted, failed, undone in steps:
        spans = tuple(
            span(slot, start, *tokens, parents=tuple(range(-1, len(tokens) - 1)) if tree else None)
            for slot, (start, tokens, tree) in sorted(wanted.items())
        )
        plan = slots.begin(iteration(*spans, operations=tuple(operations)), frozenset(failed))
        cells.act(plan.actions)
        assert {index for index, _, _ in plan.runnable} | {failure.span for failure in plan.failures} == set(
            range(len(spans))
        ) - failed
        for index, first, run in plan.runnable:
            assert first == sum(len(other.tokens) for other in spans[:index])
            assert len(cells.slots[run.slot]) == run.start, "the slot ends where the span starts"
            cells.slots[run.slot] += run.tokens
            if run.slot in undone:
                cells.act((slots.undo(run),))
        for slot in range(SLOTS):
            assert slots._cells[slot] == len(cells.slots[slot])
            assert slots.tokens[slot] == cells.slots[slot][: len(slots.tokens[slot])]
