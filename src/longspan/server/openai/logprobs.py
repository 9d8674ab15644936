"""Log-probabilities in the two forms of the OpenAI API."""

from __future__ import annotations

import msgspec

from longspan.model.tokenizer import Tokenizer
from longspan.request import Piece

LOWEST_LOGPROB = -9999.0
"""JSON has no infinity: what stands for a token that cannot come, as in OpenAI's and vLLM's answers."""


class TopLogprob(msgspec.Struct, frozen=True):
    """An alternative. bytes: of the token, which need not be whole characters."""

    token: str
    logprob: float
    bytes: list[int]


class TokenEntry(msgspec.Struct, frozen=True):
    """A sampled token with its alternatives."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Form of chat completions."""

    content: list[TokenEntry]
    refusal: None = None


class TextLogprobs(msgspec.Struct, frozen=True):
    """Form of text completions: parallel lists. text_offset: characters before the token's own."""

    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]]


def token_text(piece: bytes) -> str:
    """A token as a string: its characters or, where they are not whole, its bytes as `bytes:\\xe4\\xb8`."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def chat_entries(piece: Piece, tokenizer: Tokenizer) -> list[TokenEntry]:
    """One entry for each token of a piece; none when log-probabilities were not asked for."""
    return [
        TokenEntry(
            *_described(tokenizer, token, entry.logprob),
            [TopLogprob(*_described(tokenizer, other, value)) for other, value in entry.top],
        )
        for token, entry in zip(piece.tokens, piece.logprobs, strict=False)
    ]


def text_logprobs(piece: Piece, tokenizer: Tokenizer, offset: int) -> TextLogprobs:
    """The piece's log-probabilities. offset: characters of the answer's tokens before the piece."""
    result = TextLogprobs([], [], [], [])
    for token, entry in zip(piece.tokens, piece.logprobs, strict=False):
        text = token_text(tokenizer.piece(token))
        result.text_offset.append(offset)
        result.tokens.append(text)
        result.token_logprobs.append(_finite(entry.logprob))
        top = {token_text(tokenizer.piece(other)): _finite(value) for other, value in entry.top}
        # The sampled token is listed also when it is not among the best.
        result.top_logprobs.append({**top, text: _finite(entry.logprob)})
        offset += len(text)
    return result


def joined(parts: list[TextLogprobs]) -> TextLogprobs:
    """The log-probabilities of all pieces of an answer."""
    return TextLogprobs(
        [offset for part in parts for offset in part.text_offset],
        [value for part in parts for value in part.token_logprobs],
        [token for part in parts for token in part.tokens],
        [top for part in parts for top in part.top_logprobs],
    )


def _described(tokenizer: Tokenizer, token: int, logprob: float) -> tuple[str, float, list[int]]:
    piece = tokenizer.piece(token)
    return token_text(piece), _finite(logprob), list(piece)


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)
