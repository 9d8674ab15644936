"""One stage's part of an iteration: run it, time it, say what goes on."""

from __future__ import annotations

import time

from longspan.ring.frame import Frame
from longspan.ring.messages import decode_iteration, encode, encode_iteration
from longspan.runtime.base import Activations, StageRuntime
from longspan.schedule.span import Iteration, IterationResult, SpanFailure, StageTiming


class StageCompute:
    """Wraps a runtime with the stage's index and the form of what it passes on.

    width: of the model. dtype: of activations on the wire. Called only by the thread that owns the runtime.
    """

    def __init__(self, runtime: StageRuntime, stage: int, width: int, dtype: str) -> None:
        self._runtime = runtime
        self._stage = stage
        self._width = width
        self._dtype = dtype

    def run_frame(self, frame: Frame, received: float) -> Frame:
        """Run an iteration frame; the frame for the next stage, or on the last stage the result's.

        Raises ProtocolError when the frame is malformed, before anything was changed.
        """
        header, activations = decode_iteration(frame, self._width)
        return self.run(header.iteration, activations, received, header.failures, header.timings)

    def run(
        self,
        iteration: Iteration,
        activations: Activations,
        received: float,
        failures: tuple[SpanFailure, ...] = (),
        timings: tuple[StageTiming, ...] = (),
    ) -> Frame:
        """As `run_frame`, for an iteration that is already in hand."""
        step = self.step(iteration, activations, received, failures, timings)
        if isinstance(step, IterationResult):
            return encode(step)
        activations, failures, timings = step
        return encode_iteration(iteration, activations, self._dtype, failures, timings)

    def step(
        self,
        iteration: Iteration,
        activations: Activations,
        received: float,
        failures: tuple[SpanFailure, ...] = (),
        timings: tuple[StageTiming, ...] = (),
    ) -> IterationResult | tuple[Activations, tuple[SpanFailure, ...], tuple[StageTiming, ...]]:
        """Run the iteration: its result on the last stage, else what the next stage needs."""
        started = time.perf_counter()
        output = self._runtime.run(iteration, activations, frozenset(failure.span for failure in failures))
        timing = StageTiming(
            self._stage,
            received,
            started,
            time.perf_counter(),
            output.sub_batches,
            output.callback_seconds,
            output.drafting_seconds,
        )
        failures += output.failures
        timings += (timing,)
        if output.activations is None:
            return IterationResult(iteration.id, output.samples, failures, timings)
        return output.activations, failures, timings
