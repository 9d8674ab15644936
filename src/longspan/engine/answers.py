"""The answers under way: what the planner reports of them becomes text for those who asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from longspan.engine.answer import Answer
from longspan.engine.counters import Counters
from longspan.engine.stream import Delivery, RequestStream, deliver
from longspan.errors import LongspanError, RequestTimeoutError, RingError
from longspan.schedule.events import Admitted, Event, Failed, Finished, PromptScored, TokensCommitted
from longspan.status import RequestStatus


class Answers:
    """Answers by sequence.

    stopped: called with the sequence whose answer ended at a stop string, which the planner does not know of.
    """

    def __init__(self, counters: Counters, stopped: Callable[[int], None]) -> None:
        self._counters = counters
        self._stopped = stopped
        self._answers: dict[int, Answer] = {}
        self._sequences: dict[RequestStream, int] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def add(self, sequence: int, answer: Answer) -> None:
        """An answer begins."""
        self._answers[sequence] = answer
        self._sequences[answer.stream] = sequence

    def sequence(self, stream: RequestStream) -> int | None:
        """The sequence of a stream; None once its answer has ended."""
        return self._sequences.get(stream)

    @property
    def sequences(self) -> list[int]:
        """Of all answers under way."""
        return list(self._answers)

    def statuses(self, now: float) -> tuple[RequestStatus, ...]:
        """All answers under way, oldest first."""
        return tuple(answer.status(sequence, now) for sequence, answer in self._answers.items())

    def dispatch(self, events: Iterable[Event], now: float) -> None:
        """Hand over what the events mean for each answer. Events of answers that have ended are dropped."""
        batch: Delivery = []
        for event in events:
            answer = self._answers.get(event.sequence)
            if answer is None:
                continue
            if isinstance(event, TokensCommitted):
                batch += self._commit(answer, event, now)
            elif isinstance(event, PromptScored):
                answer.scored(event.logprobs)
            elif isinstance(event, Admitted):
                answer.admitted(now, event.cached_tokens)
            elif isinstance(event, Finished):
                self._counters.finished += 1
                batch += self._end(event.sequence, str(event.reason))
            elif isinstance(event, Failed):
                batch += self._fail(event.sequence, _error_of(event))
        deliver(batch)

    def cancel(self, sequence: int) -> None:
        """The one who asked does not want the answer any more."""
        self._counters.cancelled += 1
        deliver(self._end(sequence, "cancelled"))

    def fail_all(self, error: LongspanError) -> None:
        """Every answer ends with the error."""
        batch: Delivery = []
        for sequence in self.sequences:
            batch += self._fail(sequence, error)
        deliver(batch)

    def _commit(self, answer: Answer, event: TokensCommitted, now: float) -> Delivery:
        piece = answer.push(event, now)
        self._counters.generated_tokens += len(piece.tokens)
        if piece.finish_reason is not None:
            self._stopped(event.sequence)
            self._counters.finished += 1
            self._forget(event.sequence)
        return [(answer.stream, piece)]

    def _end(self, sequence: int, reason: str) -> Delivery:
        answer = self._answers[sequence]
        piece = answer.finish(reason)
        self._forget(sequence)
        return [(answer.stream, piece)]

    def _fail(self, sequence: int, error: LongspanError) -> Delivery:
        self._counters.failed += 1
        answer = self._answers[sequence]
        self._forget(sequence)
        return [(answer.stream, error)]

    def _forget(self, sequence: int) -> None:
        answer = self._answers.pop(sequence)
        answer.stream.timings = answer.timings()
        self._sequences.pop(answer.stream, None)


def _error_of(event: Failed) -> LongspanError:
    if event.kind == "timeout":
        return RequestTimeoutError(event.reason)
    return RingError(event.reason)
