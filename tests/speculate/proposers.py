"""Proposers for tests."""

from __future__ import annotations

from collections.abc import Sequence

from longspan.sampling.draw import uniform
from longspan.speculate.proposer import Draft, Proposer


class Foreseeing(Proposer):
    """Knows the whole answer, and drafts each token right with a given chance, by a draw for its position.

    chance: one for all, or one for each place behind the committed tokens. most: longest draft behind the committed
    tokens; None: no limit.
    """

    name = "foreseeing"

    def __init__(
        self,
        stream: Sequence[int],
        chance: float | Sequence[float],
        *,
        seed: int = 0,
        most: int | None = None,
        vocabulary: int = 256,
        continues: bool = True,
    ) -> None:
        """stream: prompt and answer."""
        self._stream = list(stream)
        self._chances = [chance] if isinstance(chance, float | int) else list(chance)
        self._seed = seed
        self._most = most
        self._vocabulary = vocabulary
        self._continues = continues
        self._committed = 0

    def observe(self, committed: Sequence[int]) -> None:
        self._committed += len(committed)

    def propose(self, tail: Sequence[int], budget: int) -> Draft:
        place = len(tail)
        if self._most is not None:
            budget = min(budget, self._most - place)
        start = self._committed + place
        drafts = []
        for position in range(start, min(start + budget, len(self._stream))):
            token = self._stream[position]
            chance = self._chances[min(position - self._committed, len(self._chances) - 1)]
            if uniform(self._seed, position) >= chance:
                token = (token + 1) % self._vocabulary
            drafts.append(token)
        return Draft(drafts, rank=place + 1, continues=self._continues)
