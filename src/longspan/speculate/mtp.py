"""Drafts that the last stage's MTP head sent along with a reply."""

from __future__ import annotations

from collections.abc import Sequence

from longspan.speculate.proposer import NOTHING, Draft, Proposer


class Mtp(Proposer):
    """A chain that hangs on the last committed token and is used up as the answer follows it.

    The head saw the true hidden state of the tip, so its chain is fresh after every divergence. A draft's rank is
    its place in the chain as the head made it: what is left of a chain keeps its ranks.
    """

    name = "mtp"
    uses_head = True

    def __init__(self) -> None:
        self._chain: list[int] = []
        self._used = 0

    def observe(self, committed: Sequence[int]) -> None:
        if not self._chain:
            return
        count = len(committed)
        if self._chain[:count] == list(committed):
            del self._chain[:count]
            self._used += count
        else:
            self._chain.clear()

    def receive(self, drafts: Sequence[int]) -> None:
        self._chain = list(drafts)
        self._used = 0

    def propose(self, tail: Sequence[int], budget: int) -> Draft:
        length = len(tail)
        if length >= len(self._chain) or (length and self._chain[:length] != list(tail)):
            return NOTHING
        return Draft(self._chain[length : length + budget], rank=self._used + length + 1, continues=False)
