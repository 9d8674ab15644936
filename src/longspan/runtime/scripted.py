"""A stage without arithmetic, to test everything around the stages in milliseconds.

A row of activations carries a token and the state of its history (see `Script`). Every stage folds the tokens into
states of its own, kept by position like KV, and compares: when the state that comes in is not the one that its own
KV gives, the row goes on corrupted, and so does every later row of the slot. So a trim, copy, order or epoch that
went wrong on any stage changes the tokens that the last stage samples.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from longspan.errors import ProtocolError
from longspan.runtime.base import Activations, Capacity, StageOutput, StageRuntime
from longspan.runtime.script import Script
from longspan.runtime.slots import KvCopy, KvTrim, SlotBook
from longspan.sampling.sampler import sample, score
from longspan.schedule.span import Iteration, Sample, Span, SpanFailure

_STATE_BYTES = 8
_TOKEN_BYTES = 4
LEAST_WIDTH = _STATE_BYTES + _TOKEN_BYTES
"""A row holds one byte a float, which float16 and bfloat16 carry unchanged."""

DEFAULT_CAPACITY = Capacity(slots=8, cells_per_slot=512, max_rows=512, exact_rows=64)


class ScriptedEmbedding:
    """Rows for the first stage, as `TokenEmbedding` gives them: the token, and no state yet."""

    def __init__(self, vocabulary: int, width: int = 16) -> None:
        self.vocabulary = vocabulary
        self.width = width

    def rows(self, tokens: npt.NDArray[np.int32]) -> Activations:
        """(len(tokens), width), float32."""
        return _encoded([0] * len(tokens), tokens.tolist(), self.width)


@dataclasses.dataclass(frozen=True)
class FailSpan:
    """Fail one span: number `at` (from 0) of the spans of `sequence` that reach the stage, or of all when None."""

    at: int
    sequence: int | None = None
    reason: str = "scripted fault"


@dataclasses.dataclass(frozen=True)
class RaiseError:
    """Raise `error` out of call number `at` (from 0) of `run`, before anything is changed."""

    at: int
    error: Exception = dataclasses.field(default_factory=lambda: RuntimeError("scripted fault"))


class ScriptedRuntime(StageRuntime):
    """One stage of a scripted model."""

    def __init__(
        self,
        script: Script,
        *,
        last: bool,
        capacity: Capacity = DEFAULT_CAPACITY,
        width: int = 16,
        seconds_per_iteration: float = 0.0,
        seconds_per_row: float = 0.0,
        faults: Sequence[FailSpan | RaiseError] = (),
    ) -> None:
        """last: whether this stage samples. width: floats of a row, at least LEAST_WIDTH.

        seconds_per_iteration, seconds_per_row: how long `run` sleeps, in place of computing.
        """
        if width < LEAST_WIDTH:
            raise ValueError(f"a scripted row needs {LEAST_WIDTH} floats, not {width}")
        self._script = script
        self._last = last
        self._capacity = capacity
        self._width = width
        self._seconds_per_iteration = seconds_per_iteration
        self._seconds_per_row = seconds_per_row
        self._book = SlotBook(capacity, script.vocabulary)
        self._states: list[list[int]] = [[] for _ in range(capacity.slots)]
        self._errors = {fault.at: fault.error for fault in faults if isinstance(fault, RaiseError)}
        self._failing = [fault for fault in faults if isinstance(fault, FailSpan)]
        self._runs = 0
        self._spans: dict[int | None, int] = {}

    def capacity(self) -> Capacity:
        return self._capacity

    def close(self) -> None:
        """Nothing is held but lists."""

    def run(
        self, iteration: Iteration, activations: Activations, failed: frozenset[int] = frozenset()
    ) -> StageOutput:
        self._runs += 1
        if self._runs - 1 in self._errors:
            raise self._errors[self._runs - 1]
        if activations.shape != (iteration.rows, self._width):
            raise ProtocolError(
                f"activations of shape {activations.shape}, expected ({iteration.rows}, {self._width})"
            )
        plan = self._book.begin(iteration, failed)
        for action in plan.actions:
            self._apply(action)
        failures = list(plan.failures)
        samples: list[Sample] = []
        output = np.zeros_like(activations, dtype=np.float32)
        for index, first, span in plan.runnable:
            reason = self._fault(span)
            if reason is not None:
                self._apply(self._book.undo(span))
                failures.append(SpanFailure(index, reason))
                continue
            rows = slice(first, first + len(span.tokens))
            states = self._run_span(span, activations[rows])
            output[rows] = _encoded(states, span.tokens, self._width)
            if self._last:
                given = dict(zip(span.sample_rows, span.given, strict=False))
                samples += [
                    self._sampled(index, span, row, states[row], given.get(row)) for row in span.sample_rows
                ]
        if self._seconds_per_iteration or self._seconds_per_row:
            time.sleep(self._seconds_per_iteration + self._seconds_per_row * iteration.rows)
        failures.sort(key=lambda failure: failure.span)
        return StageOutput(None if self._last else output, tuple(samples), tuple(failures))

    def _apply(self, action: KvTrim | KvCopy) -> None:
        if isinstance(action, KvTrim):
            del self._states[action.slot][action.keep :]
        else:
            # Appended, never replaced: a target that was not trimmed before stays wrong.
            self._states[action.target] += self._states[action.source][: action.length]

    def _run_span(self, span: Span, activations: Activations) -> list[int]:
        """The states after the rows of a span; they are appended to the slot, whatever it holds."""
        held = self._states[span.slot]
        root = held[-1] if held else 0
        states: list[int] = []
        depths: list[int] = []
        for row, (incoming, token) in enumerate(_decoded(activations)):
            parent = row - 1 if span.parents is None else span.parents[row]
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
            position = span.start + depths[row]
            state = self._script.advance(states[parent] if parent >= 0 else root, token, position)
            if token != span.tokens[row] or incoming not in (0, state):
                state = self._script.advance(state ^ incoming, span.tokens[row], position)
            states.append(state)
        held += states
        return states

    def _sampled(self, index: int, span: Span, row: int, state: int, given: int | None) -> Sample:
        parameters = self._book.sampling[span.slot]
        history = self._book.history(span, row)
        logits = self._script.logits(state, history, parameters.prompt_length)
        if given is not None:
            return Sample(index, row, given, score(logits, given, parameters.prompt_logprobs, len(history)))
        token, logprob = sample(logits, parameters, len(history), history)
        return Sample(index, row, token, logprob)

    def _fault(self, span: Span) -> str | None:
        """The reason to fail this span, if a fault is due; counts the span."""
        for key in (span.sequence, None):
            self._spans[key] = self._spans.get(key, -1) + 1
        for fault in self._failing:
            if fault.sequence in (span.sequence, None) and self._spans[fault.sequence] == fault.at:
                return fault.reason
        return None


def _encoded(states: Sequence[int], tokens: Sequence[int], width: int) -> Activations:
    rows = np.zeros((len(tokens), width), np.float32)
    numbers = np.array(states, np.uint64).view(np.uint8).reshape(-1, _STATE_BYTES)
    rows[:, :_STATE_BYTES] = numbers
    rows[:, _STATE_BYTES:LEAST_WIDTH] = np.array(tokens, np.uint32).view(np.uint8).reshape(-1, _TOKEN_BYTES)
    return rows


def _decoded(rows: Activations) -> list[tuple[int, int]]:
    """(state, token) of every row; floats that are no bytes give a wrong state, not an error."""
    numbers = np.nan_to_num(np.clip(rows[:, :LEAST_WIDTH], 0, 255)).astype(np.uint8)
    states = np.ascontiguousarray(numbers[:, :_STATE_BYTES]).view(np.uint64).ravel()
    tokens = np.ascontiguousarray(numbers[:, _STATE_BYTES:]).view(np.uint32).ravel()
    return list(zip(states.tolist(), tokens.tolist(), strict=True))
