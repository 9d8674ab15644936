"""What a stage knows about its slots: lengths, token histories and sampling state.

Every runtime keeps one `SlotBook`. It checks an iteration before anything is changed, applies the operations to its
own books, and says which KV actions and which spans the runtime has to run. A stage therefore trims, copies and
refuses by one rule, whatever does the arithmetic.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from longspan.errors import ProtocolError, RequestError
from longspan.runtime.base import Capacity
from longspan.sampling.limits import check
from longspan.sampling.parameters import SamplingParameters
from longspan.schedule.span import (
    CommitBranch,
    CopyPrefix,
    Drop,
    Iteration,
    Operation,
    Phase,
    Span,
    SpanFailure,
    Trim,
)

MAX_VOCABULARY = 1 << 24
MAX_OPERATIONS = 4096
"""Most operations of one iteration; more is not a plan but an attack."""


@dataclasses.dataclass(frozen=True)
class KvTrim:
    """Remove the cells of `slot` from position `keep` on."""

    slot: int
    keep: int


@dataclasses.dataclass(frozen=True)
class KvCopy:
    """Make `target` hold the first `length` positions of `source`; the target was trimmed to nothing before."""

    source: int
    target: int
    length: int


@dataclasses.dataclass(frozen=True)
class SlotPlan:
    """What a runtime has to do for one iteration, in order: `actions`, then the spans in `runnable` as one batch.

    runnable: (index in the iteration, first row in the iteration's activations, span).
    failures: spans that this stage refuses.
    """

    actions: tuple[KvTrim | KvCopy, ...]
    runnable: tuple[tuple[int, int, Span], ...]
    failures: tuple[SpanFailure, ...]


class SlotBook:
    """Books of all slots of one stage.

    tokens[slot]: token ids at the positions that the slot holds; its length is the slot's length.
    sampling[slot]: the sampling state last sent for the slot. vocabulary: tokens of the model, where it is known.
    """

    def __init__(self, capacity: Capacity, vocabulary: int = MAX_VOCABULARY) -> None:
        self._capacity = capacity
        self._vocabulary = vocabulary
        self.tokens: list[list[int]] = [[] for _ in range(capacity.slots)]
        self.sampling: list[SamplingParameters] = [SamplingParameters()] * capacity.slots
        # Cells in use, which after a tree window are more than the slot's length: its branches are not positions.
        self._cells: list[int] = [0] * capacity.slots

    def begin(self, iteration: Iteration, failed: frozenset[int]) -> SlotPlan:
        """Check the iteration and enter it into the books.

        failed: indices of spans that an earlier stage failed; they are not run and their slots keep what they hold.
        Raises ProtocolError when the iteration is malformed; then the books are unchanged.
        """
        self._check(iteration)
        actions: list[KvTrim | KvCopy] = []
        for operation in iteration.operations:
            self._apply(operation, actions)
        for entry in iteration.samplings:
            self.sampling[entry.slot] = entry.parameters
        runnable: list[tuple[int, int, Span]] = []
        failures: list[SpanFailure] = []
        row = 0
        for index, span in enumerate(iteration.spans):
            first, row = row, row + len(span.tokens)
            if index in failed:
                continue
            reason = self._refusal(span)
            if reason:
                failures.append(SpanFailure(index, reason))
                continue
            self._trim(span.slot, span.start, actions)
            # Of a tree, the rows before its first fork lie in order, and stay.
            kept = len(span.tokens) if span.parents is None else stem_length(span.parents)
            self.tokens[span.slot].extend(span.tokens[:kept])
            self._cells[span.slot] = span.start + len(span.tokens)
            runnable.append((index, first, span))
        return SlotPlan(tuple(actions), tuple(runnable), tuple(failures))

    def undo(self, span: Span) -> KvTrim:
        """The span's rows did not run: forget them, and say what to trim so that the slot is clean again."""
        del self.tokens[span.slot][span.start :]
        self._cells[span.slot] = span.start
        return KvTrim(span.slot, span.start)

    def forget(self, slot: int) -> KvTrim:
        """Nothing that the slot holds can be relied on: empty it, and say what to trim."""
        self.tokens[slot].clear()
        self._cells[slot] = 0
        return KvTrim(slot, 0)

    def history(self, span: Span, row: int) -> list[int]:
        """Tokens at positions 0 … up to and including the row, along the branch that leads to it in a tree."""
        held = self.tokens[span.slot]
        if span.parents is None:
            return held[: span.start + row + 1]
        path: list[int] = []
        node = row
        while node >= 0:
            path.append(span.tokens[node])
            node = span.parents[node]
        return held[: span.start] + path[::-1]

    def _trim(self, slot: int, keep: int, actions: list[KvTrim | KvCopy]) -> None:
        if self._cells[slot] > keep:
            actions.append(KvTrim(slot, keep))
            self._cells[slot] = keep
            del self.tokens[slot][keep:]

    def _apply(self, operation: Operation, actions: list[KvTrim | KvCopy]) -> None:
        if isinstance(operation, Trim):
            self._trim(operation.slot, operation.keep, actions)
        elif isinstance(operation, Drop):
            self._trim(operation.slot, 0, actions)
            self.sampling[operation.slot] = SamplingParameters()
        elif isinstance(operation, CopyPrefix):
            # A source shorter than asked is not an error here: the target gets what there is, and the span that
            # relies on the rest fails by its start position, as any span does that starts beyond its slot.
            length = min(operation.length, len(self.tokens[operation.source]))
            self._trim(operation.target, 0, actions)
            if length:
                actions.append(KvCopy(operation.source, operation.target, length))
            self.tokens[operation.target] = self.tokens[operation.source][:length]
            self._cells[operation.target] = length
        else:
            # The accepted branch is run again by the next span, so that the committed KV stays in order.
            self._trim(operation.slot, operation.start, actions)

    def _refusal(self, span: Span) -> str:
        held = len(self.tokens[span.slot])
        if span.start > held:
            return f"the span starts at position {span.start}, but slot {span.slot} holds only {held} positions"
        if span.start + len(span.tokens) > self._capacity.cells_per_slot:
            return (
                f"the span ends at position {span.start + len(span.tokens)}, "
                f"but a slot holds {self._capacity.cells_per_slot} positions"
            )
        return ""

    def _check(self, iteration: Iteration) -> None:
        if len(iteration.operations) > MAX_OPERATIONS:
            raise ProtocolError(
                f"{len(iteration.operations)} operations in one iteration, at most {MAX_OPERATIONS}"
            )
        for operation in iteration.operations:
            for slot in _slots_of(operation):
                self._check_slot(slot)
            if min(_positions_of(operation)) < 0:
                raise ProtocolError(f"negative position in {operation}")
            if isinstance(operation, CopyPrefix) and operation.source == operation.target:
                raise ProtocolError(f"copy of slot {operation.source} onto itself")
        for entry in iteration.samplings:
            self._check_slot(entry.slot)
            try:
                check(entry.parameters, self._vocabulary)
            except RequestError as error:
                raise ProtocolError(f"sampling of slot {entry.slot}: {error}") from None
        rows, previous = 0, -1
        for index, span in enumerate(iteration.spans):
            self._check_slot(span.slot)
            if span.slot <= previous:
                raise ProtocolError(f"span {index}: slot {span.slot} after slot {previous}; slots must ascend")
            previous = span.slot
            rows += len(span.tokens)
            _check_span(index, span)
        if rows > self._capacity.max_rows:
            raise ProtocolError(f"{rows} rows in one iteration, this stage takes at most {self._capacity.max_rows}")

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self._capacity.slots:
            raise ProtocolError(f"slot {slot} does not exist, this stage has slots 0 to {self._capacity.slots - 1}")


def stem_length(parents: Sequence[int]) -> int:
    """Rows of a tree from its root to the first fork.

    parents: index of each row's parent, -1 for the root, in topological order; not empty.
    """
    children = collections.Counter(parents)
    rows = 0
    while rows < len(parents) and parents[rows] == rows - 1 and children[rows - 1] == 1:
        rows += 1
    return rows


def _slots_of(operation: Operation) -> tuple[int, ...]:
    if isinstance(operation, CopyPrefix):
        return (operation.source, operation.target)
    return (operation.slot,)


def _positions_of(operation: Operation) -> tuple[int, ...]:
    if isinstance(operation, Trim):
        return (operation.keep,)
    if isinstance(operation, CopyPrefix):
        return (operation.length,)
    if isinstance(operation, CommitBranch):
        return (operation.start, *operation.rows)
    return (0,)


def _check_span(index: int, span: Span) -> None:
    count = len(span.tokens)
    if count == 0:
        raise ProtocolError(f"span {index} has no tokens")
    if span.start < 0:
        raise ProtocolError(f"span {index} starts at position {span.start}")
    if min(span.tokens) < 0:
        raise ProtocolError(f"span {index} has a negative token")
    previous = -1
    for row in span.sample_rows:
        if not previous < row < count:
            raise ProtocolError(f"span {index} samples row {row} of {count}; rows must ascend and exist")
        previous = row
    if len(span.given) > len(span.sample_rows) or (span.given and span.phase is not Phase.PREFILL):
        raise ProtocolError(
            f"span {index} is given {len(span.given)} tokens for {len(span.sample_rows)} asked rows; given tokens "
            "follow asked rows of a prompt"
        )
    if span.parents is not None and (
        len(span.parents) != count or any(not -1 <= parent < node for node, parent in enumerate(span.parents))
    ):
        raise ProtocolError(
            f"span {index}: {len(span.parents)} parents for {count} nodes, or a parent after its child"
        )
