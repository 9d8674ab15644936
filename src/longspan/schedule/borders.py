"""Where a prompt may be cut into spans, so that its rows never depend on load.

Below the exact-row limit a row's result does not depend on what else is in the batch: as long as every iteration
has fewer rows than the limit, spans may be cut anywhere. A chunk of at least that many rows goes through another
kernel, so there the cuts are a function of the prompt alone: fixed multiples of the chunk from position 0, each
whole and alone in its iteration; a remainder below the limit may be cut and mixed again. A replay follows the same
cuts. Source: measured on llama.cpp, where rows of one sub-batch of 64 and more change in the last bits.
"""

from __future__ import annotations

from typing import NamedTuple

from longspan.schedule.limits import Limits
from longspan.schedule.sequence import Sequence


class Piece(NamedTuple):
    """The next rows of a prompt: at most `rows`; `whole` means exactly that many, and nothing beside them."""

    rows: int
    whole: bool


def next_piece(sequence: Sequence, start: int, limits: Limits) -> Piece:
    """The piece that starts at position `start`, up to which the sequence's KV is there or on its way."""
    remaining = sequence.prefill_end - start
    if not limits.fixed_borders:
        return Piece(min(remaining, limits.scored_rows) if sequence.scores_prompt else remaining, False)
    prompt = sequence.prompt_length
    whole_chunks = prompt - prompt % limits.chunk
    if start < whole_chunks:
        return Piece(limits.chunk, True)
    if start < prompt and prompt - whole_chunks >= limits.exact_rows:
        return Piece(prompt - start, True)
    return Piece(remaining, False)


def shareable(sequence: Sequence, limits: Limits) -> int:
    """How many confirmed positions of a sequence another one may start from."""
    if not limits.fixed_borders:
        return sequence.computed
    whole_chunks = sequence.prompt_length - sequence.prompt_length % limits.chunk
    return min(sequence.computed - sequence.computed % limits.chunk, whole_chunks)


def restorable(sequence: Sequence, limits: Limits) -> int:
    """Most positions that a sequence may take over from a cache.

    A fresh prompt must run at least its last row, which is sampled, and the rows that still say how likely the
    tokens behind them were; a replay may be restored whole.
    """
    fresh = sequence.generated == 0
    if not limits.fixed_borders:
        most = sequence.prefill_end - 1 if fresh else sequence.prefill_end
        return min(most, sequence.scored) if sequence.scores_prompt else most
    prompt = sequence.prompt_length - 1 if fresh else sequence.prompt_length
    if sequence.scores_prompt:
        prompt = min(prompt, sequence.scored)
    return prompt - prompt % limits.chunk
