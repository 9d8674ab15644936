"""The smallest planner that drives real sequences and windows over scripted stages, in process.

It does what the real one owes to windows: spans in slot order, at most one a slot, results in order, replies of an
older epoch dropped, slots given away at once while rows of their last owner are still in flight.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from longspan.runtime.script import Script
from longspan.runtime.scripted import ScriptedEmbedding, ScriptedRuntime
from longspan.sampling.parameters import SamplingParameters
from longspan.schedule.request import SequenceRequest
from longspan.schedule.sequence import NO_SLOT, Status
from longspan.schedule.sequence import Sequence as Stream
from longspan.schedule.span import Drop, Iteration, Operation, Sample, SlotSampling, Span
from longspan.speculate.acceptance import CommonBooks, SequenceBooks
from longspan.speculate.ledger import Ledger
from longspan.speculate.proposer import Proposer
from longspan.speculate.windows import Windows

CELLS = 512


class ToyPlanner:
    """sequences: by id, finished ones too. in_flight: iterations whose result was not taken yet."""

    def __init__(
        self,
        script: Script,
        stages: Sequence[ScriptedRuntime],
        *,
        slots: int = 3,
        windows: type[Windows] = Windows,
    ) -> None:
        self.ledger = Ledger()
        self.sequences: dict[int, Stream] = {}
        self.windows: dict[int, Windows] = {}
        self.in_flight: deque[tuple[Iteration, tuple[Sample, ...]]] = deque()
        self._script = script
        self._stages = stages
        self._embedding = ScriptedEmbedding(script.vocabulary)
        self._make_windows = windows
        self._free = list(range(slots))
        self._operations: list[Operation] = []
        self._samplings: list[SlotSampling] = []
        self._count = 0

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        proposer: Proposer,
        sampling: SamplingParameters,
        end_tokens: frozenset[int] = frozenset(),
    ) -> Stream:
        sampling = msgspec.structs.replace(sampling, prompt_length=len(prompt))
        request = SequenceRequest(
            prompt=tuple(prompt), max_tokens=max_tokens, end_tokens=end_tokens, sampling=sampling
        )
        sequence = Stream(len(self.sequences), request, 0.0, CELLS)
        self.sequences[sequence.id] = sequence
        self.windows[sequence.id] = self._make_windows(
            sequence, proposer, SequenceBooks(CommonBooks()), self.ledger, self._script.vocabulary
        )
        return sequence

    def admit(self) -> None:
        for sequence in self.sequences.values():
            if sequence.status is Status.WAITING and self._free:
                sequence.slot = heapq.heappop(self._free)
                sequence.status = Status.RUNNING
                self._samplings.append(SlotSampling(sequence.slot, sequence.request.sampling))

    @property
    def running(self) -> list[Stream]:
        return sorted(
            (sequence for sequence in self.sequences.values() if sequence.status is Status.RUNNING),
            key=lambda sequence: sequence.slot,
        )

    def plan(self, rows: Callable[[Stream], int]) -> Iteration | None:
        """One iteration: `rows(sequence)` rows of prefill, replay or window for each; 0 leaves it out."""
        self.admit()
        spans: list[Span] = []
        for sequence in self.running:
            wanted = rows(sequence)
            if wanted <= 0:
                continue
            if sequence.prefill_remaining > 0:
                spans.append(sequence.prefill_span(min(wanted, sequence.prefill_remaining)))
                continue
            windows = self.windows[sequence.id]
            windows.look_ahead(2 * wanted)
            span = windows.next_span(wanted)
            if span is not None:
                spans.append(span)
        if not spans:
            return None
        iteration = Iteration(self._count, tuple(self._operations), tuple(self._samplings), tuple(spans))
        self._count += 1
        self._operations.clear()
        self._samplings.clear()
        self.in_flight.append((iteration, self._run(iteration)))
        return iteration

    def _run(self, iteration: Iteration) -> tuple[Sample, ...]:
        tokens = iteration.tokens
        rows = self._embedding.rows(np.array(tokens, np.int32))
        for stage in self._stages:
            output = stage.run(iteration, rows)
            assert not output.failures, output.failures
            if output.activations is not None:
                rows = output.activations
        return output.samples

    def complete(self) -> None:
        """Take the oldest result."""
        iteration, samples = self.in_flight.popleft()
        for span in iteration.spans:
            if span.phase.is_exact:
                self.ledger.returned(span)
        for index, span in enumerate(iteration.spans):
            sequence = self.sequences[span.sequence]
            if sequence.status is not Status.RUNNING or sequence.epoch != span.epoch:
                continue
            own = tuple(sample for sample in samples if sample.span == index)
            self.windows[sequence.id].commit(span, own)
            if sequence.ended:
                self.finish(sequence)

    def finish(self, sequence: Stream) -> None:
        """The sequence ends, by itself or from outside; its slot is free at once."""
        if sequence.status is Status.RUNNING:
            self._leave(sequence)
        sequence.status = Status.FINISHED
        self.windows[sequence.id].forget()

    def preempt(self, sequence: Stream) -> None:
        """The sequence gives its slot back and waits for another one."""
        self._leave(sequence)
        sequence.rewind()
        self.windows[sequence.id].forget()

    def _leave(self, sequence: Stream) -> None:
        assert sequence.slot != NO_SLOT
        self._operations.append(Drop(sequence.slot))
        heapq.heappush(self._free, sequence.slot)
