"""Stands for a model whose answer to one prompt is known, token for token."""

from __future__ import annotations

from collections.abc import Sequence

from longspan.schedule.span import CopyPrefix, Drop, Iteration, Sample, SpanFailure, Trim


class Transcript:
    """tokens: the prompt and the answer. Behind anything else follows `other`, which is no token of the model."""

    def __init__(self, tokens: Sequence[int], slots: int, other: int) -> None:
        self._tokens = list(tokens)
        self._slots: list[list[int]] = [[] for _ in range(slots)]
        self._other = other

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
            held += span.tokens
            right = self._agreeing(held)
            for row in span.sample_rows:
                position = span.start + row + 1
                known = position <= right and position < len(self._tokens)
                samples.append(Sample(index, row, self._tokens[position] if known else self._other))
        return tuple(samples), tuple(failures)

    def _agreeing(self, held: Sequence[int]) -> int:
        """How many tokens of a slot are those of the transcript."""
        pairs = zip(held, self._tokens, strict=False)
        return next((count for count, (a, b) in enumerate(pairs) if a != b), min(len(held), len(self._tokens)))
