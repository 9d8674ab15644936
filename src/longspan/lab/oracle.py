"""Stands for the model: what a slot holds, and the token that follows from it.

The next token is a hash of every token before it. A row that ran on a wrong prefix, in a wrong slot or at a wrong
position therefore gives other tokens than the sequence alone would, and the comparison at the end finds it.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

from longspan.schedule.span import CopyPrefix, Drop, Iteration, Sample, SpanFailure, Trim

VOCABULARY = 32000

_MULTIPLIER = 6364136223846793005
_MASK = (1 << 64) - 1


def extend_state(state: int, token: int) -> int:
    """The state after one more token; 0 is the state before any."""
    return (state * _MULTIPLIER + token + 1442695040888963407) & _MASK


def next_token(state: int) -> int:
    """The token that follows a state."""
    return (state >> 33) % VOCABULARY


def serial_answer(prompt: Sequence[int], tokens: int, end_tokens: frozenset[int] = frozenset()) -> list[int]:
    """What a prompt gives on its own: the truth for every schedule."""
    state = 0
    for token in prompt:
        state = extend_state(state, token)
    answer: list[int] = []
    while len(answer) < tokens:
        answer.append(next_token(state))
        if answer[-1] in end_tokens:
            break
        state = extend_state(state, answer[-1])
    return answer


class ModelledSlots(abc.ABC):
    """Runs iterations as every stage would: operations, then spans, each trimming its slot to its start.

    What a slot holds for a token, and which token follows, is the subclass's.
    """

    def __init__(self, slots: int) -> None:
        self._slots: list[list[int]] = [[] for _ in range(slots)]

    @abc.abstractmethod
    def _append(self, held: list[int], token: int) -> None:
        """One more token at the end of what a slot holds."""

    @abc.abstractmethod
    def _following(self, held: Sequence[int], position: int) -> int:
        """The token at `position`, behind what the slot holds before it."""

    def run(self, iteration: Iteration) -> tuple[tuple[Sample, ...], tuple[SpanFailure, ...]]:
        """Samples of the asked rows, and failures of spans that start beyond what their slot holds."""
        slots = self._slots
        for operation in iteration.operations:
            if isinstance(operation, Drop):
                slots[operation.slot] = []
            elif isinstance(operation, Trim):
                del slots[operation.slot][operation.keep :]
            elif isinstance(operation, CopyPrefix):
                slots[operation.target] = slots[operation.source][: operation.length]
        samples: list[Sample] = []
        failures: list[SpanFailure] = []
        for index, span in enumerate(iteration.spans):
            held = slots[span.slot]
            if len(held) < span.start:
                failures.append(SpanFailure(index, f"slot {span.slot} holds {len(held)} of {span.start} positions"))
                continue
            del held[span.start :]
            for token in span.tokens:
                self._append(held, token)
            samples += [Sample(index, row, self._following(held, span.start + row + 1)) for row in span.sample_rows]
        return tuple(samples), tuple(failures)

    def held(self, slot: int) -> int:
        """Positions that a slot holds."""
        return len(self._slots[slot])


class Oracle(ModelledSlots):
    """Holds the state after every token; the token that follows is a hash of all before it."""

    def _append(self, held: list[int], token: int) -> None:
        held.append(extend_state(held[-1] if held else 0, token))

    def _following(self, held: Sequence[int], position: int) -> int:
        return next_token(held[position - 1])
