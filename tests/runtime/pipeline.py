"""Stages of one model in one process, run one after the other: a ring without links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from longspan.runtime.base import StageRuntime
from longspan.sampling.parameters import SamplingParameters
from longspan.schedule.span import (
    Iteration,
    IterationResult,
    Operation,
    Phase,
    SlotSampling,
    Span,
    SpanFailure,
)


class Embedding(Protocol):
    """What turns tokens into the first stage's rows."""

    def rows(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]: ...


def span(slot: int, start: int, tokens: Sequence[int], **fields: object) -> Span:
    """A span that samples its last row unless told otherwise."""
    given = Span(slot, slot, 0, start, tuple(tokens), Phase.VERIFY, sample_rows=(len(tokens) - 1,))
    return msgspec.structs.replace(given, **fields)


class Pipeline:
    """All stages. rows of the last `run` after each stage: `activations`."""

    def __init__(self, stages: Sequence[StageRuntime], embedding: Embedding) -> None:
        self.stages = stages
        self.embedding = embedding
        self.activations: list[npt.NDArray[np.float32]] = []
        self._count = 0

    def run(
        self,
        spans: Sequence[Span],
        operations: Sequence[Operation] = (),
        samplings: Sequence[tuple[int, SamplingParameters]] = (),
    ) -> IterationResult:
        """One iteration through all stages. Span failures accumulate, as they do on the wire."""
        self._count += 1
        iteration = Iteration(
            self._count,
            tuple(operations),
            tuple(SlotSampling(slot, parameters) for slot, parameters in samplings),
            tuple(sorted(spans, key=lambda entry: entry.slot)),
        )
        tokens = [token for entry in iteration.spans for token in entry.tokens]
        rows = self.embedding.rows(np.array(tokens, np.int32))
        failures: list[SpanFailure] = []
        self.activations = []
        for stage in self.stages:
            output = stage.run(iteration, rows, frozenset(failure.span for failure in failures))
            failures += output.failures
            if output.activations is None:
                return IterationResult(iteration.id, output.samples, tuple(failures))
            rows = output.activations
            self.activations.append(rows)
        return IterationResult(iteration.id, (), tuple(failures))

    def generate(
        self, prompt: Sequence[int], count: int, parameters: SamplingParameters, slot: int = 0
    ) -> list[int]:
        """Prompt in one span, then one row at a time."""
        parameters = msgspec.structs.replace(parameters, prompt_length=len(prompt))
        tokens, answer = list(prompt), []
        result = self.run([span(slot, 0, prompt)], samplings=[(slot, parameters)])
        while True:
            assert not result.failures, result.failures
            answer.append(result.samples[0].token)
            if len(answer) == count:
                return answer
            tokens.append(answer[-1])
            result = self.run([span(slot, len(tokens) - 1, tokens[-1:])])
