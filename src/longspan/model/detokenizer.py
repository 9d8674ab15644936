"""Tokens to text while they arrive."""

from __future__ import annotations

import codecs

from longspan.model.tokenizer import Tokenizer

_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """Turns one sequence's tokens into text that never splits a character.

    A character whose bytes are spread over tokens is held back until it is whole. What `push` and `flush` return,
    joined, is the text of all the tokens' bytes, with U+FFFD for bytes that are not UTF-8.
    Control tokens add nothing, unless `special` asks for them to be written out.
    """

    def __init__(self, tokenizer: Tokenizer, *, special: bool = False) -> None:
        self._piece = tokenizer.piece if special else tokenizer.visible_piece
        self._decoder = _utf8_decoder(errors="replace")

    def push(self, token: int) -> str:
        """Text that has become whole with `token`. Raises UsageError for a token outside of the vocabulary."""
        return self._decoder.decode(self._piece(token))

    def flush(self) -> str:
        """End of the sequence: U+FFFD for a character that was never finished, else nothing."""
        return self._decoder.decode(b"", final=True)
