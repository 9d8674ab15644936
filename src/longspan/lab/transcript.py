"""Stands for a model whose answer to one prompt is known, token for token."""

from __future__ import annotations

from collections.abc import Sequence

from longspan.lab.oracle import ModelledSlots


class Transcript(ModelledSlots):
    """tokens: the prompt and the answer. Behind anything else follows `other`, which is no token of the model.

    Holds, at every position, how many tokens up to there are those of the transcript.
    """

    def __init__(self, tokens: Sequence[int], slots: int, other: int) -> None:
        super().__init__(slots)
        self._tokens = tuple(tokens)
        self._other = other

    def _append(self, held: list[int], token: int) -> None:
        position, right = len(held), held[-1] if held else 0
        agrees = right == position < len(self._tokens) and self._tokens[position] == token
        held.append(right + agrees)

    def _following(self, held: Sequence[int], position: int) -> int:
        known = held[position - 1] == position < len(self._tokens)
        return self._tokens[position] if known else self._other
