"""A model whose large spans give other KV than its small ones, as real kernels do."""

from __future__ import annotations

from longspan.lab.oracle import extend_state, next_token
from longspan.schedule.limits import Limits
from longspan.schedule.span import CopyPrefix, Drop, Iteration, Sample, SpanFailure, TokenLogprob


def _row_state(state: int, token: int, start: int, rows: int, exact_rows: int) -> int:
    """Rows of a span of `exact_rows` rows and more remember where it was cut."""
    state = extend_state(state, token)
    return extend_state(extend_state(state, start), rows) if rows >= exact_rows else state


class BorderOracle:
    """Runs iterations; every slot holds the state after each of its positions."""

    def __init__(self, limits: Limits) -> None:
        self._exact_rows = limits.exact_rows
        self._slots: list[list[int]] = [[] for _ in range(limits.slots)]

    def run(self, iteration: Iteration) -> tuple[tuple[Sample, ...], tuple[SpanFailure, ...]]:
        for operation in iteration.operations:
            if isinstance(operation, Drop):
                self._slots[operation.slot] = []
            elif isinstance(operation, CopyPrefix):
                source = self._slots[operation.source]
                assert len(source) >= operation.length, "a copy needs what it copies"
                self._slots[operation.target] = source[: operation.length]
        samples: list[Sample] = []
        failures: list[SpanFailure] = []
        for index, span in enumerate(iteration.spans):
            states = self._slots[span.slot]
            assert len(states) >= span.start, "a span follows what its slot holds"
            del states[span.start :]
            state = states[-1] if states else 0
            for token in span.tokens:
                state = _row_state(state, token, span.start, len(span.tokens), self._exact_rows)
                states.append(state)
            given = dict(zip(span.sample_rows, span.given, strict=False))
            for row in span.sample_rows:
                position = span.start + row + 1
                if row in given:  # "how likely" tells the position, so that a test sees which token was meant
                    samples.append(Sample(index, row, given[row], TokenLogprob(-float(position))))
                else:
                    samples.append(Sample(index, row, next_token(states[position - 1])))
        return tuple(samples), tuple(failures)


def border_answer(prompt: tuple[int, ...], tokens: int, limits: Limits, ends: frozenset[int]) -> list[int]:
    """What the prompt gives alone: fixed chunks, the remainder, then one row at a time."""
    state = 0
    start = 0
    while start < len(prompt):
        left = len(prompt) - start
        rows = min(left, limits.chunk) if limits.fixed_borders else left
        exact = limits.exact_rows if limits.fixed_borders else left + 1
        for token in prompt[start : start + rows]:
            state = _row_state(state, token, start, rows, exact)
        start += rows
    answer: list[int] = []
    while len(answer) < tokens:
        answer.append(next_token(state))
        if answer[-1] in ends:
            break
        state = extend_state(state, answer[-1])
    return answer
