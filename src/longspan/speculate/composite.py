"""Proposers made of others; every draft stays in the book of the one that made it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from longspan.speculate.acceptance import SequenceBooks
from longspan.speculate.proposer import NOTHING, Draft, Proposer


class _Composite(Proposer):
    """Passes on what it is told."""

    def __init__(self, parts: Sequence[Proposer]) -> None:
        self._parts = tuple(parts)
        self.uses_head = any(part.uses_head for part in parts)

    def observe(self, committed: Sequence[int]) -> None:
        for part in self._parts:
            part.observe(committed)

    def receive(self, drafts: Sequence[int]) -> None:
        for part in self._parts:
            part.receive(drafts)

    def attach(self, wake: Callable[[], None]) -> None:
        for part in self._parts:
            part.attach(wake)

    def end(self) -> None:
        for part in self._parts:
            part.end()


class Chained(_Composite):
    """The first proposer's chain, and the next one's behind it: an MTP prefix with an N-gram tail.

    Whoever has something for the longer tail goes on, so the tail of a chain is drafted as if the chain were right.
    It is compared only where the chain was, so a rejected tail is no rejection of the prefix.
    """

    def __init__(self, name: str, parts: Sequence[Proposer]) -> None:
        super().__init__(parts)
        self.name = name

    def propose(self, tail: Sequence[int], budget: int) -> Draft:
        for part in self._parts:
            draft = part.propose(tail, budget)
            if draft.tokens:
                return named(draft, part)
        return NOTHING


class Ranked(_Composite):
    """The draft of which most tokens are expected to be accepted, by the books of this sequence.

    Drafts at the tip that were not taken are remembered and judged all the same, for a proposer that is never
    heard would never be believed again.
    """

    def __init__(self, name: str, parts: Sequence[Proposer], books: SequenceBooks) -> None:
        super().__init__(parts)
        self.name = name
        self._books = books
        self._passed_over: list[Draft] = []

    def observe(self, committed: Sequence[int]) -> None:
        for draft in self._passed_over:
            self._books.judge(draft, committed)
        self._passed_over.clear()
        super().observe(committed)

    def propose(self, tail: Sequence[int], budget: int) -> Draft:
        drafts = [named(draft, part) for part in self._parts if (draft := part.propose(tail, budget)).tokens]
        if not drafts:
            return NOTHING
        best = drafts[0] if len(drafts) == 1 else max(drafts, key=self._books.expected)
        if not tail:
            self._passed_over = [draft for draft in drafts if draft.book != best.book]
        return best


def named(draft: Draft, part: Proposer) -> Draft:
    """The draft with its book, which is that of the part which made it unless it names another."""
    return draft if draft.book or not draft.tokens else draft._replace(book=part.name)


ProposerMaker = Callable[[SequenceBooks], Proposer]
"""Makes the proposer of one sequence, which may look into that sequence's books."""
