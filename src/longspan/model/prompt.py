"""The begin token of a prompt."""

from __future__ import annotations

from longspan.model.tokenizer import Tokenizer


def with_bos(tokenizer: Tokenizer, tokens: list[int]) -> list[int]:
    """Put the model's begin token in front, where the template has not done it."""
    if tokenizer.adds_bos and tokenizer.bos is not None and tokens[:1] != [tokenizer.bos]:
        return [tokenizer.bos, *tokens]
    return tokens
