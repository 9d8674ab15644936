"""The flow of work: planner to ring, results back to the planner, and what that means to the streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec
import numpy as np

from longspan.engine.answers import Answers
from longspan.engine.journal import Journal
from longspan.errors import LongspanError, RingError
from longspan.model.embedding import TokenEmbedding
from longspan.ring.driver import RingDriver
from longspan.ring.ring_plan import StagePlace
from longspan.schedule.events import Event, FinishReason
from longspan.schedule.limits import Limits
from longspan.schedule.planner import Planner
from longspan.schedule.span import IterationResult, SpanFailure
from longspan.speculate.ledger import Ledger

FAR_BACKLOG = 3
"""Iterations that may wait for a first stage that is far away; beside the coordinator one is enough, because it
says at once when it can take the next."""

SETTLE_SECONDS = 0.001
"""How long after an iteration was sent its stage, in this process, has the interpreter for itself."""


class Flow:
    """Keeps a ring fed. Only the engine's loop calls it.

    serving: whether the ring takes work. on_failure: the ring cannot go on.
    """

    def __init__(
        self,
        planner: Planner,
        ledger: Ledger | None,
        embedding: TokenEmbedding,
        vocabulary: int,
        answers: Answers,
        journal: Journal,
        *,
        serving: Callable[[], bool],
        on_failure: Callable[[RingError], None],
    ) -> None:
        """ledger: of speculation."""
        self._planner = planner
        self._ledger = ledger
        self._embedding = embedding
        self._vocabulary = vocabulary
        self._answers = answers
        self._journal = journal
        self._serving = serving
        self._on_failure = on_failure
        self._driver: RingDriver | None = None
        self._works_here = False
        self._backlog = FAR_BACKLOG
        self._events: list[Event] = []
        self._settling: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, driver: RingDriver, first: StagePlace) -> None:
        """The ring has formed, for the first time. first: where its first stage is."""
        self._driver = driver
        self._backlog = 1 if first.near else FAR_BACKLOG
        self._works_here = first.address is None

    def begin_again(self, driver: RingDriver, first: StagePlace, limits: Limits) -> None:
        """Another ring has formed: running requests are replayed from their committed tokens and go on."""
        self.begin(driver, first)
        self._events += self._planner.abandon(self.now(), limits)
        self.pump()

    def pump(self) -> None:
        """Plan and send while the first stage can take work. Requests time out also while there is no ring."""
        if self._driver is not None and self._serving():
            self._feed(self._driver)
        self._events += self._planner.take_events()
        if self._events:
            self._settle_later()
        self._arm_timer()

    def _feed(self, driver: RingDriver) -> None:
        while driver.pending < self._backlog:
            iteration = self._planner.plan(self.now())
            if iteration is None:
                break
            tokens = np.array(iteration.tokens, np.int32)
            driver.send(iteration, self._embedding.rows(tokens))

    def take(self, result: IterationResult) -> None:
        """An iteration is back."""
        now = self.now()
        try:
            events = self._planner.complete(self._known_tokens(result), now, learn=False)
        except LongspanError as error:
            self._on_failure(RingError(str(error)))
            return
        self._events += events
        if self._planner.last_completed is not None:
            self._journal.note(self._planner.last_completed, result, now, self._ledger)
        # Plan first: the stages start on the next iteration while texts are made of this one.
        self.pump()

    def finish(self, sequence: int) -> None:
        """An answer has ended at a stop string, which the planner does not know of."""
        self._planner.finish(sequence, FinishReason.STOP, self.now())

    def cancel(self, sequences: list[int]) -> None:
        """Plan these no more."""
        for sequence in sequences:
            self._planner.cancel(sequence, self.now())

    def settle(self) -> None:
        """Hand over texts, learn from timings, write the trace."""
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        now = self.now()
        events, self._events = self._events, []
        self._answers.dispatch(events, now)
        self._planner.learn()
        self._journal.write()

    def stop(self) -> None:
        """Wake up for no deadline any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _known_tokens(self, result: IterationResult) -> IterationResult:
        """The result, with every span failed that was answered by a token that the model does not have."""
        limit = self._vocabulary
        wrong = {sample.span: sample.token for sample in result.samples if not 0 <= sample.token < limit}
        if not wrong:
            return result
        failures = tuple(
            SpanFailure(span, f"the last stage answered with token {token}, the model has tokens 0 to {limit - 1}")
            for span, token in wrong.items()
        )
        return msgspec.structs.replace(result, failures=result.failures + failures)

    def _settle_later(self) -> None:
        """What no stage waits for, a moment after the next iteration was sent.

        A stage in this process first needs the interpreter itself; while it computes, it does not.
        """
        if self._settling is not None:
            return
        if self._works_here and self._driver is not None and self._driver.pending:
            self._settling = asyncio.get_running_loop().call_later(SETTLE_SECONDS, self.settle)
        else:
            self.settle()

    def _arm_timer(self) -> None:
        """Wake up when the next waiting request times out."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._planner.next_deadline()
        if due is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due - self.now()), self._expire)

    def _expire(self) -> None:
        self._events += self._planner.expire(self.now())
        self.pump()

    @staticmethod
    def now() -> float:
        """Seconds of the engine's clock."""
        return time.perf_counter()
