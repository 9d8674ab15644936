"""Windows that hold a token tree: one in flight, for a runtime with shared KV."""

from __future__ import annotations

from longspan.schedule.sequence import Sequence
from longspan.schedule.span import DraftRequest, Phase, Sample, Span
from longspan.speculate.grafts import Grafts
from longspan.speculate.ledger import Ledger
from longspan.speculate.tree import NO_TREE, Tree, accepted_rows, is_tree, pruned, span_rows


class TreeWindows:
    """What lies beyond the committed tokens of a sequence, as a tree.

    The rows of an accepted branch lie behind those of dead ones in the KV. So the next span starts at the old root
    again: the branch runs once more as its first rows, in order, and the new tree hangs on its end. For the planner
    the accepted rows count as dispatched; as computed, and so for others to share, only what lies in order.
    """

    __slots__ = ("_flying", "_grafts", "_in_order", "_ledger", "_observed", "_sequence", "_tree", "_vocabulary")

    def __init__(self, sequence: Sequence, ledger: Ledger, vocabulary: int, grafts: Grafts) -> None:
        """vocabulary: its size; drafts that are no tree of its tokens are not sent. grafts: hang more on them."""
        self._sequence = sequence
        self._vocabulary = vocabulary
        self._grafts = grafts
        self._observed = 0
        self._ledger = ledger
        self._tree: Tree = NO_TREE
        self._flying = False
        self._in_order: int | None = None  # positions whose KV lies in order; None: all that were dispatched

    @property
    def sequence(self) -> Sequence:
        """Whose windows these are."""
        return self._sequence

    @property
    def tree(self) -> Tree:
        """The drafts for the next span."""
        return self._tree

    @property
    def decodable(self) -> bool:
        """True when the last committed token's row can be sent: nothing that samples is in flight."""
        sequence = self._sequence
        length = len(sequence.tokens)
        return not self._flying and length > sequence.prompt_length and sequence.dispatched == length - 1

    @property
    def draft_behind_prompt(self) -> DraftRequest:
        """The head drafts from the row that ends the prompt: a tree needs its root's drafts."""
        return DraftRequest.ALWAYS

    @property
    def runs_ahead(self) -> bool:
        """A tree grows from what the one before it has become."""
        return False

    @property
    def again(self) -> int:
        """Rows of the next span before its tree: the accepted branch, and the last committed token."""
        return len(self._sequence.tokens) - self._start

    def receive(self, tree: Tree) -> None:
        """Drafts that follow the committed tokens, for the next span."""
        self._tree = tree

    def next_span(self, nodes: int) -> Span | None:
        """Send the accepted branch again with at most `nodes` nodes behind it; None while a span is in flight."""
        if not self.decodable or self._sequence.ended:
            return None
        sequence = self._sequence
        start = self._start
        again = sequence.tokens[start:]
        # No more nodes than tokens that may still follow: a slot has cells for these.
        tree = pruned(self._tree, max(0, min(nodes, sequence.token_limit - 1 - len(sequence.tokens))))
        tokens, parents = span_rows(again, tree)
        root = len(again) - 1
        self._flying = True
        self._in_order = start
        sequence.dispatched = len(sequence.tokens)
        span = Span(
            sequence.id,
            sequence.slot,
            sequence.epoch,
            start,
            tokens,
            Phase.VERIFY if len(tokens) > 1 else Phase.DECODE,
            tuple(range(root, len(tokens))),
            parents if tree.tokens else None,
            DraftRequest.ALWAYS,
        )
        self._ledger.sent(span, len(tree.tokens))
        return span

    def commit(self, span: Span, samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
        """Take over what the ring computed for a span of this epoch; returns the samples that were committed.

        They are those along the accepted path. An end token or the token limit ends it, and the sequence.
        """
        sequence = self._sequence
        if not span.phase.is_exact:
            sequence.computed = span.end
            path = [samples[0].row] if samples else []
        else:
            self._flying = False
            root = span.sample_rows[0]
            parents = span.parents or range(-1, len(span.tokens) - 1)
            path = accepted_rows(span.tokens, parents, root, {sample.row: sample.token for sample in samples})
            self._in_order = sequence.computed = span.start + root + 1
        by_row = {sample.row: sample for sample in samples}
        committed: list[Sample] = []
        for row in path:
            committed.append(by_row[row])
            sequence.tokens.append(by_row[row].token)
            if len(sequence.tokens) >= sequence.token_limit or by_row[row].token in sequence.end_tokens:
                sequence.ended = True
                break
        if span.phase.is_exact:
            sequence.dispatched = len(sequence.tokens) - 1
            self._ledger.committed(len(span.tokens), len(committed), len(committed) - 1)
        if committed:
            last = committed[-1]
            drafts = Tree(last.draft, last.parents, last.chances)
            self._tree = self._grown(drafts if is_tree(drafts, self._vocabulary) else NO_TREE)
        return tuple(committed)

    def _grown(self, tree: Tree) -> Tree:
        if self._sequence.ended:
            return tree
        tokens = self._sequence.tokens
        self._grafts.observe(tokens[self._observed :])
        self._observed = len(tokens)
        return self._grafts.onto(tree)

    def forget(self) -> None:
        """The sequence was rewound, or is over."""
        self._tree = NO_TREE
        self._flying = False
        self._in_order = None
        self._ledger.voided(self._sequence.id, self._sequence.epoch)

    @property
    def _start(self) -> int:
        dispatched = self._sequence.dispatched
        return dispatched if self._in_order is None else min(self._in_order, dispatched)
