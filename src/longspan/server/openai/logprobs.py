"""Log-probabilities in the two forms of the OpenAI API."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from longspan.model.tokenizer import Tokenizer
from longspan.request import Piece
from longspan.schedule.span import TokenLogprob

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
    """Form of text completions: parallel lists. text_offset: characters before the token's own.

    Nothing is known of the first token of an echoed prompt: nothing comes before it.
    """

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


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


class PromptLogprob(msgspec.Struct, frozen=True):
    """How likely a token was in its place of the prompt.

    rank: 1 is the most likely; null beyond the alternatives.
    """

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""Form of vLLM: for each token of the prompt itself and its alternatives, by id; null for the first."""


def text_logprobs(
    tokens: Sequence[int],
    logprobs: Sequence[TokenLogprob | None],
    tokenizer: Tokenizer,
    offset: int,
    alternatives: int,
) -> TextLogprobs:
    """The log-probabilities of tokens. offset: characters of the answer's tokens before them.

    alternatives: how many to tell of each; there may be more. logprobs: None where nothing is known.
    """
    result = TextLogprobs([], [], [], [])
    for token, entry in zip(tokens, logprobs, strict=False):
        text = token_text(tokenizer.piece(token))
        result.text_offset.append(offset)
        result.tokens.append(text)
        result.token_logprobs.append(None if entry is None else _finite(entry.logprob))
        if entry is None:
            result.top_logprobs.append(None)
        else:
            best = entry.top[:alternatives]
            top = {token_text(tokenizer.piece(other)): _finite(value) for other, value in best}
            # The token itself is listed also when it is not among the best.
            result.top_logprobs.append({**top, text: _finite(entry.logprob)})
        offset += len(text)
    return result


def prompt_logprobs(
    prompt: Sequence[int], logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer, alternatives: int
) -> PromptLogprobs:
    """What a prompt's tokens say. logprobs: of each of them but the first. alternatives: how many to tell of."""
    found: PromptLogprobs = [None]
    for token, entry in zip(prompt[1:], logprobs, strict=True):
        ranks = {other: (value, rank) for rank, (other, value) in enumerate(entry.top[:alternatives], start=1)}
        ranked = {token: (entry.logprob, ranks.get(token, (0.0, None))[1]), **ranks}
        found.append(
            {
                str(other): PromptLogprob(_finite(value), rank, token_text(tokenizer.piece(other)))
                for other, (value, rank) in ranked.items()
            }
        )
    return found


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
