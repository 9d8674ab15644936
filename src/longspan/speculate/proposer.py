"""The contract of a proposer: where draft tokens come from.

A proposer is never authoritative. What it drafts is compared with what the target samples, so a bad proposer costs
time and never a token. One proposer serves one sequence; docs/guides/proposers.md shows how to write one.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Draft(NamedTuple):
    """Tokens that may follow, and where to account for them.

    tokens: in order; empty when there is nothing to propose.
    book: under which name acceptance is counted; "" stands for the proposer's own name.
    rank: of tokens[0] within that book, from 1; token j has rank `rank + j`. Acceptance is learned by rank, so a
        rank should stand for "how sure": the place in a chain, or the length of the match that led here.
    continues: whether more is likely to follow when these turn out right.
    """

    tokens: Sequence[int] = ()
    book: str = ""
    rank: int = 1
    continues: bool = True


NOTHING = Draft()


class Proposer(abc.ABC):
    """Drafts for one sequence. Owns no position: it is told what is committed, and asked what may come next.

    name: how it is chosen, and the book of its drafts unless a draft names another.
    uses_head: whether it lives on the drafts that the last stage's MTP head sends along (see `receive`).
    """

    name: str = ""
    uses_head: bool = False

    def observe(self, committed: Sequence[int]) -> None:  # noqa: B027  a proposer may look at nothing
        """More committed tokens, in order: first the prompt, then the answer as it grows. Each comes once.

        Several commits may come as one call. Only these tokens may be indexed.
        """

    @abc.abstractmethod
    def propose(self, tail: Sequence[int], budget: int) -> Draft:
        """At most `budget` tokens that may follow the committed tokens and then `tail`.

        tail: drafts behind the committed tokens that are on their way or wait to be sent; read only, and not to be
            kept: they can turn out wrong.
        Called again with a longer tail until the horizon is full or nothing is proposed, so there is no need to
        fill the budget.
        """

    def receive(self, drafts: Sequence[int]) -> None:  # noqa: B027  most proposers do not use the head
        """Drafts of the last stage's head that follow all tokens observed so far."""

    def attach(self, wake: Callable[[], None]) -> None:  # noqa: B027  most proposers think when they are asked
        """wake: to be called by a proposer that thinks in its own time, when it has more than it last proposed."""

    def end(self) -> None:  # noqa: B027  most proposers hold nothing
        """The sequence is over; nothing is asked any more."""


class NoProposer(Proposer):
    """Never drafts: every token takes its own trip."""

    name = "none"

    def propose(self, tail: Sequence[int], budget: int) -> Draft:
        return NOTHING
