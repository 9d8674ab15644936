"""Plans iterations and takes their results: the heart of serving.

    plan(now) -> Iteration | None          each time stage 0 can take work
    complete(result, now) -> events        each time the last stage answers, in order

Decode rows come first, from a rotating cursor; what is left of the iteration goes to prompts. The planner is pure:
it has no clock and no random numbers, and calls nobody.
"""

from __future__ import annotations

import bisect
from collections import deque
from operator import attrgetter
from typing import NamedTuple

from longspan.errors import ProtocolError
from longspan.schedule.admission import Admission
from longspan.schedule.decoding import Decoding
from longspan.schedule.events import Event, FailureKind, FinishReason, PromptScored, TokensCommitted
from longspan.schedule.filling import Filling
from longspan.schedule.geometry import NO_ROWS, ExactShape, join_geometry
from longspan.schedule.limits import Limits
from longspan.schedule.outcome import SpanFault, outcomes
from longspan.schedule.pacing import NOTHING_JOINED, Joining, Pacing
from longspan.schedule.plan_record import PlanRecord
from longspan.schedule.policy import Policy
from longspan.schedule.request import SequenceRequest
from longspan.schedule.roster import Roster
from longspan.schedule.sequence import Sequence
from longspan.schedule.snapshot import PlannerStatistics, snapshot
from longspan.schedule.span import Iteration, IterationResult, Sample, Span
from longspan.schedule.speculator import Speculator
from longspan.schedule.statistics import Counters
from longspan.schedule.turns import Turns

_SLOT = attrgetter("slot")


class _Draft(NamedTuple):
    """An iteration in the making: decode spans or windows with their shape, and the prefill that runs with them.

    streams: sequences that were past their prefill before.
    """

    streams: int
    spans: list[Span]
    exact: ExactShape
    prefill: list[Span]
    joining: Joining


class Planner:
    """Owns every sequence from `submit` to its last event.

    Times are seconds of one monotonic clock that the caller chooses. Nothing here is thread-safe.
    last_completed: what was known when the iteration was planned whose result was taken last; for traces.
    """

    def __init__(self, limits: Limits, policy: Policy | None = None, speculator: Speculator | None = None) -> None:
        """speculator: deals windows of drafts to sequences; None: every sequence has one row in flight at most."""
        self.limits = limits
        self._speculator = speculator
        self.policy = policy or Policy()
        self.last_completed: PlanRecord | None = None
        self._roster = Roster(limits, self.policy)
        self._admission = Admission(self._roster)
        self._filling = Filling(self._roster, self._admission)
        self._pacing = Pacing(self.policy)
        self._counters = Counters()
        self._in_flight: deque[PlanRecord] = deque()
        self._decoding = Decoding(self._roster, self._admission, speculator, self._in_flight)
        self._unlearned: tuple[PlanRecord, IterationResult, float] | None = None
        self._next_sequence = 0
        self._next_iteration = 0
        self._turns = Turns(self._roster, self._filling, self._pacing, self._in_flight)

    # ------------------------------------------------------------------------------------------------ sequences

    def submit(self, request: SequenceRequest, now: float) -> int:
        """Queue a request; returns its sequence id.

        The answer ends with reason "length" after `max_tokens`, or earlier when prompt and answer fill the cells of
        a slot. Raises RequestError, ContextLengthError or QueueFullError (see `Admission.check`).
        """
        self._admission.check(request, self.limits)
        sequence = Sequence(self._next_sequence, request, now, self.limits.longest)
        if self._speculator is not None:
            sequence.tail = self._speculator.windows(sequence)
        self._next_sequence += 1
        self._roster.enqueue(sequence)
        return sequence.id

    def cancel(self, sequence_id: int, now: float) -> None:
        """Drop a sequence; what is in flight of it is ignored later. No event; unknown ids are fine."""
        self.finish(sequence_id, FinishReason.CANCELLED, now)

    def finish(self, sequence_id: int, reason: FinishReason, now: float) -> None:
        """End an answer from outside, for example at a stop string. No event; unknown ids are fine."""
        sequence = self._roster.sequences.get(sequence_id)
        if sequence is not None:
            self._roster.finish(sequence, reason)

    # ------------------------------------------------------------------------------------------------- planning

    @property
    def in_flight(self) -> int:
        """Iterations that were planned and have not come back."""
        return len(self._in_flight)

    def plan(self, now: float) -> Iteration | None:
        """The next iteration; None only when nothing can run before a result comes back or a request arrives.

        May be called while earlier iterations are in flight. Events that planning causes (Admitted, Preempted,
        Finished) come with the next `complete`, or at once from `take_events`.
        """
        streams = len(self._roster.decoding)
        prompt = self._filling.next_prompt() if self._filling.wanted else None
        prefill = self._turns.before_decode(prompt, now) if prompt is not None else []
        spans, exact = self._decoding.spans(now) if not prefill else ([], NO_ROWS)
        if self.limits.pooled and not prefill:
            # Making room for decode rows may have taken the prompt's place away, or made one.
            prompt = self._filling.next_prompt() if self._filling.wanted else None
        joining = NOTHING_JOINED
        if prompt is not None and not prefill:
            if not spans:
                prefill = self._turns.in_pause(prompt, now)
            else:
                prefill, joining = self._turns.beside(exact.geometry, prompt, now)
        if not spans and not prefill and len(self._roster.ready):
            # A sequence that found all its rows cached was let in meanwhile, and has no prefill row to run.
            spans, exact = self._decoding.spans(now)
        if not spans and not prefill:
            return None
        return self._send(_Draft(streams, spans, exact, prefill, joining), now)

    def _send(self, draft: _Draft, now: float) -> Iteration:
        """Make the iteration of a draft, and remember what is known now."""
        roster, pacing = self._roster, self._pacing
        spans, prefill, geometry = draft.spans, draft.prefill, draft.exact.geometry
        self._turns.sent(geometry, draft.streams)
        if prefill:
            geometry = join_geometry(draft.exact, prefill)
            for span in prefill:
                bisect.insort(spans, span, key=_SLOT)
        operations, samplings = tuple(roster.slots.operations), tuple(roster.samplings)
        roster.slots.operations.clear()
        roster.samplings.clear()
        iteration = Iteration(self._next_iteration, operations, samplings, tuple(spans))
        self._next_iteration += 1
        mixed = geometry.mixed
        if mixed:
            pacing.joined(now)
        rows = geometry.prefill_rows
        record = PlanRecord(
            iteration=iteration,
            geometry=geometry,
            planned_at=now,
            predicted=pacing.costs.by_stage(geometry),
            decode_seconds=draft.joining.decode_seconds,
            allowance=draft.joining.allowance,
            prefill_seconds=pacing.prefill_seconds(prefill[0].start, rows, self.limits.free_rows) if mixed else 0.0,
            prefill_cut=self._filling.wanted and (not geometry.exact_rows or rows >= draft.joining.rows),
            guard=pacing.guard.state(now),
            streams=draft.streams,
            prompts=roster.slots.running
            - draft.streams
            + min(len(roster.waiting), self.limits.slots - roster.slots.running),
            running=roster.slots.running,
            waiting=len(roster.waiting),
        )
        self._in_flight.append(record)
        self._counters.planned(geometry, prefill)
        return iteration

    def take_events(self) -> list[Event]:
        """Events that no call has returned yet."""
        return self._roster.take_events()

    # --------------------------------------------------------------------------------------------------- results

    def complete(self, result: IterationResult, now: float, *, learn: bool = True) -> list[Event]:
        """Take the result of the oldest iteration in flight; returns what happened since the last call.

        learn: at once from its timings. Whoever plans first, because a stage waits, calls `learn` soon after.

        Results of sequences that ended or were rewound meanwhile are dropped. Raises ProtocolError when the result
        is not of the oldest iteration: results come back in order, or the ring is broken.
        """
        if not self._in_flight or self._in_flight[0].iteration.id != result.iteration:
            expected = self._in_flight[0].iteration.id if self._in_flight else "none"
            raise ProtocolError(
                f"a result of iteration {result.iteration} came back, expected was {expected}; form the ring again"
            )
        self.learn()
        record = self.last_completed = self._in_flight.popleft()
        iteration = record.iteration
        roster = self._roster
        ready: list[int] = []
        if self._speculator is not None:
            self._speculator.returned(iteration.spans, now)
            if not record.geometry.prefill_rows:
                self._speculator.measured(now - record.planned_at, result.timings, record.geometry)
        decided = outcomes(iteration, result)
        for span, outcome in zip(iteration.spans, decided.spans, strict=True):
            sequence = roster.sequences.get(span.sequence)
            if sequence is None or sequence.epoch != span.epoch:
                continue
            if isinstance(outcome, SpanFault):
                roster.fail(sequence, outcome.kind, outcome.reason)
                continue
            self._commit(sequence, span, outcome)
            if sequence.ended:
                roster.end_of_answer(sequence)
            elif outcome and sequence.decodable:
                ready.append(span.slot)
        roster.ready.add(ready)
        self._counters.strays += decided.strays
        self._unlearned = (record, result, now)
        if learn:
            self.learn()
        return roster.take_events()

    def learn(self) -> None:
        """Learn from the last result's timings, unless that is done. The next result does it at the latest."""
        if self._unlearned is None:
            return
        (record, result, now), self._unlearned = self._unlearned, None
        self._counters.measured(record, self._pacing.observe(record, result, now))
        if not self._roster.decoding:
            self._pacing.debt = 0.0

    def _commit(self, sequence: Sequence, span: Span, samples: tuple[Sample, ...]) -> None:
        if span.given:
            scored = samples[: len(span.given)]
            logprobs = tuple(sample.logprob for sample in scored if sample.logprob is not None)
            self._roster.events.append(PromptScored(sequence.id, logprobs))
            span, samples = sequence.score(span, samples)
        committed = sequence.commit(span, samples)
        if sequence.computed >= sequence.confirm_at:
            self._roster.slots.confirm(sequence)
        if committed:
            rows = len(span.sample_rows) if span.phase.is_exact else 0
            self._roster.events.append(_tokens_committed(sequence.id, committed, rows))

    def abandon(self, now: float, limits: Limits | None = None) -> list[Event]:
        """The ring is lost: nothing in flight comes back, and no stage holds any KV.

        Running sequences wait again, before new ones, and are replayed from their committed tokens. `limits`: of
        the new ring, when they changed; sequences that cannot fit there fail.
        """
        self.learn()
        self._roster.blame({span.sequence for record in self._in_flight for span in record.iteration.spans})
        self._in_flight.clear()
        self._turns.ring_lost()
        if limits is not None:
            self.limits = limits
        self._roster.reset(self.limits)
        self._pacing.ring_lost()
        if self._speculator is not None:
            self._speculator.lost()
        return self._roster.take_events()

    def expire(self, now: float) -> list[Event]:
        """Fail the sequences that waited too long; returns what happened since the last call."""
        roster = self._roster
        for sequence in roster.waiting.expired(now):
            roster.fail(
                sequence,
                FailureKind.TIMEOUT,
                f"waited {now - sequence.arrival:.1f} s in the queue, which is longer than it may",
            )
        return roster.take_events()

    def next_deadline(self) -> float | None:
        """When `expire` has something to do next; None: no time limit is set."""
        return self._roster.waiting.next_time_limit()

    def statistics(self, now: float) -> PlannerStatistics:
        """State and totals."""
        self.learn()
        return snapshot(self._roster, self._pacing, self._counters, len(self._in_flight), now)


def _tokens_committed(sequence: int, samples: tuple[Sample, ...], rows: int) -> TokensCommitted:
    if len(samples) == 1:  # the rule for decode rows; worth a short way
        (sample,) = samples
        logprobs = () if sample.logprob is None else (sample.logprob,)
        return TokensCommitted(sequence, (sample.token,), logprobs, rows)
    return TokensCommitted(
        sequence,
        tuple(sample.token for sample in samples),
        tuple(sample.logprob for sample in samples if sample.logprob is not None),
        rows,
    )
