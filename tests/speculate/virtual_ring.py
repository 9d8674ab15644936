"""A ring in virtual time whose target text is known, with the real sequences, windows, proposers and paces.

The coordinator holds stage 0, so an iteration starts there as soon as that stage is free; every link takes `delay`
seconds. Stages run iterations in order. The rows say what the text says next, whatever they were given: a window
that went wrong is dropped by the windows, or the result is wrong.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Sequence

from longspan.sampling.draw import uniform
from longspan.schedule.geometry import Geometry, geometry_of
from longspan.schedule.request import SequenceRequest
from longspan.schedule.sequence import Sequence as Stream
from longspan.schedule.sequence import Status
from longspan.schedule.span import Sample, Span, StageTiming
from longspan.speculate.acceptance import SequenceBooks
from longspan.speculate.ledger import SpeculationStatistics
from longspan.speculate.proposer import Proposer
from longspan.speculate.speculation import Speculation, SpeculationPolicy
from longspan.speculate.windows import Windows

VOCABULARY = 32000
OVERHEAD = 0.0003
"""Seconds of a hop beside its delay."""
MOST_ROWS = 63
"""Of an iteration."""


@dataclasses.dataclass(frozen=True)
class RingShape:
    """stages; delay of each link, seconds; seconds of one stage for an iteration of any rows, and for a row.

    jitter: each stage's seconds vary by up to this share.
    """

    stages: int = 2
    delay: float = 0.0
    fixed: float = 0.00295
    by_row: float = 0.00122
    jitter: float = 0.05

    def cost(self, rows: int, history: float = 0.0) -> float:
        return self.fixed + self.by_row * rows


@dataclasses.dataclass(frozen=True)
class Text:
    """A prompt and the tokens that follow it."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """seconds until all were done; tokens of all."""

    seconds: float
    tokens: int

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


class VirtualRing:
    """One ring; what it learned in one run it knows in the next."""

    def __init__(
        self,
        shape: RingShape,
        policy: SpeculationPolicy,
        proposer: Callable[[Text, SequenceBooks], Proposer],
    ) -> None:
        self._shape = shape
        self._texts: dict[int, Text] = {}
        self._making: Text
        self.speculation = Speculation(
            policy,
            lambda books: proposer(self._making, books),
            cost=shape.cost,
            rows=MOST_ROWS,
            vocabulary=VOCABULARY,
        )
        self._windows: dict[int, Windows] = {}
        self._ready: deque[Windows] = deque()
        self._results: deque[tuple[float, float, list[Span], list[StageTiming], Geometry]] = deque()
        self._free = [0.0] * shape.stages
        self._iterations = 0
        self._now = 0.0

    @property
    def statistics(self) -> SpeculationStatistics:
        """Figures of all runs."""
        return self.speculation.statistics(self._now)

    def run(self, texts: Sequence[Text]) -> Outcome:
        """All texts at once, each to its end."""
        for text in texts:
            self._making = text
            identity = len(self._texts)
            self._texts[identity] = text
            self._windows[identity] = self.speculation.windows(_stream(identity, text))
        self._ready.extend(self._windows.values())
        started = self._now
        tokens = 0
        while self._windows or self._results:
            while self._results and self._results[0][0] <= self._now:
                tokens += self._complete()
                if not self._windows:
                    finished = self._now
            if self._free[0] <= self._now and self._windows:
                self._plan()
            times = [self._results[0][0]] if self._results else []
            if self._free[0] > self._now and self._windows:
                times.append(self._free[0])
            if not times:
                break
            self._now = min(times)
        assert not self._windows, "nothing runs although sequences are left"
        return Outcome(finished - started, tokens)

    def _plan(self) -> None:
        group = math.ceil(len(self._windows) / self._shape.stages)
        ready = [self._ready.popleft() for _ in range(min(group, len(self._ready)))]
        out = {windows.sequence.id for windows in (*ready, *self._ready)}
        running = [windows for windows in self._windows.values() if windows.sequence.id not in out]
        history = sum(len(windows.sequence.tokens) for windows in self._windows.values()) / len(self._windows)
        self.speculation.pace.refresh(len(self._windows), group, history, self._now)
        spans = self.speculation.deal(ready, running, MOST_ROWS, group, self._now)
        if not spans:
            return
        geometry = geometry_of(sorted(spans, key=lambda span: span.slot))
        assert geometry.rows <= MOST_ROWS
        passes = geometry.sub_batches
        seconds = (passes - 1) * self._shape.cost(1) + self._shape.cost(geometry.rows - passes + 1)
        timings = []
        received = self._now
        for stage in range(self._shape.stages):
            self._iterations += 1
            jitter = 1 + self._shape.jitter * (2 * uniform(1, self._iterations) - 1)
            started = max(received, self._free[stage])
            finished = started + seconds * jitter
            self._free[stage] = finished
            timings.append(StageTiming(stage, received, started, finished))
            received = finished + self._shape.delay + OVERHEAD
        back = received if self._shape.stages > 1 or self._shape.delay else timings[-1].finished
        self._results.append((back, self._now, spans, timings, geometry))

    def _complete(self) -> int:
        _, sent, spans, timings, geometry = self._results.popleft()
        self.speculation.returned(spans, self._now)
        self.speculation.measured(self._now - sent, timings, geometry)
        tokens = 0
        for span in spans:
            windows = self._windows.get(span.sequence)
            if windows is None or windows.sequence.epoch != span.epoch:
                continue
            text = self._texts[span.sequence]
            answers = text.prompt + text.answer
            samples = [Sample(0, row, answers[span.start + row + 1]) for row in span.sample_rows]
            tokens += len(windows.commit(span, tuple(samples)))
            if windows.sequence.ended:
                assert tuple(windows.sequence.tokens) == answers
                windows.forget()
                del self._windows[span.sequence]
            elif windows.decodable:
                self._ready.append(windows)
        return tokens


def _stream(identity: int, text: Text) -> Stream:
    """A sequence whose prompt is done and whose first token is there."""
    request = SequenceRequest(prompt=text.prompt, max_tokens=len(text.answer))
    sequence = Stream(identity, request, 0.0, 1 << 20)
    sequence.status = Status.RUNNING
    sequence.slot = identity
    sequence.dispatched = sequence.computed = len(text.prompt)
    sequence.tokens.append(text.answer[0])
    return sequence
