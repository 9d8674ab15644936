"""The uncommon words of a sequence, as candidates for its drafts.

A draft head spends most of its time on the vocabulary matrix, so it runs with the rows of common tokens only. The
uncommon ones that an answer uses were mostly there before, in the prompt or in the answer: those are few, and their
logits are one small product.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from longspan.model.embedding import TokenEmbedding

MOST_WORDS = 512
"""Tokens a slot remembers; the oldest give way."""

Array = npt.NDArray[np.float32]


class DraftLexicon:
    """Tokens of one slot's text that are not among the common ones, with their rows of the output matrix."""

    def __init__(self, matrix: TokenEmbedding, common: npt.NDArray[np.bool_]) -> None:
        """matrix: the model's output matrix. common: (vocabulary,), true for tokens that need not be remembered."""
        self._matrix = matrix
        self._common = common
        self._places: dict[int, int] = {}
        self._next = 0
        self.tokens: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        self._rows: Array = np.zeros((0, matrix.width), np.float32)

    def note(self, tokens: Sequence[int]) -> None:
        """Remember the uncommon ones among tokens of the text; numbers outside the vocabulary are passed over."""
        seen = np.unique(np.array(tokens, np.int64))
        seen = seen[(seen >= 0) & (seen < len(self._common))]
        new = [token for token in seen[~self._common[seen]].tolist() if token not in self._places][-MOST_WORDS:]
        if not new:
            return
        rows = self._matrix.rows(np.array(new, np.int32))
        grown = min(MOST_WORDS, len(self.tokens) + len(new))
        if grown > len(self.tokens):
            missing = grown - len(self.tokens)
            self.tokens = np.concatenate([self.tokens, np.zeros(missing, np.int32)])
            self._rows = np.concatenate([self._rows, np.zeros((missing, self._matrix.width), np.float32)])
        for token, row in zip(new, rows, strict=True):
            place = self._next
            if len(self._places) == MOST_WORDS:
                del self._places[int(self.tokens[place])]
            self._places[token] = place
            self.tokens[place] = token
            self._rows[place] = row
            self._next = (place + 1) % MOST_WORDS

    def copy(self) -> DraftLexicon:
        """A lexicon that starts with the same words."""
        other = DraftLexicon(self._matrix, self._common)
        other._places, other._next = dict(self._places), self._next
        other.tokens, other._rows = self.tokens.copy(), self._rows.copy()
        return other

    def logits(self, hidden: Array) -> Array:
        """Logits of `tokens`, in that order, for one hidden state (width,)."""
        found: Array = self._rows @ hidden
        return found
