"""Plans iterations and takes their results: the heart of serving.

    plan(now) -> Iteration | None          each time stage 0 can take work
    complete(result, now) -> events        each time the last stage answers, in order

Decode rows come first, from a rotating cursor; what is left of the iteration goes to prompts. The planner is pure:
it has no clock and no random numbers, and calls nobody.
"""

from __future__ import annotations

import math
from collections import deque
from operator import attrgetter

from longspan.errors import ProtocolError
from longspan.schedule.admission import Admission
from longspan.schedule.borders import next_piece
from longspan.schedule.events import Event, FailureKind, FinishReason, TokensCommitted
from longspan.schedule.limits import Limits
from longspan.schedule.outcome import SpanFault, outcomes
from longspan.schedule.policy import Policy
from longspan.schedule.request import SequenceRequest
from longspan.schedule.roster import Roster
from longspan.schedule.sequence import Sequence
from longspan.schedule.span import Iteration, IterationResult, Sample, Span

_SLOT = attrgetter("slot")


class Planner:
    """Owns every sequence from `submit` to its last event.

    Times are seconds of one monotonic clock that the caller chooses. Nothing here is thread-safe.
    """

    def __init__(self, limits: Limits, policy: Policy | None = None) -> None:
        self.limits = limits
        self.policy = policy or Policy()
        self._roster = Roster(limits, self.policy)
        self._admission = Admission(self._roster)
        self._in_flight: deque[Iteration] = deque()
        self._next_sequence = 0
        self._next_iteration = 0
        self._prefill_only_in_a_row = 0

    # ------------------------------------------------------------------------------------------------ sequences

    def submit(self, request: SequenceRequest, now: float) -> int:
        """Queue a request; returns its sequence id.

        The answer ends with reason "length" after `max_tokens`, or earlier when prompt and answer fill the cells of
        a slot. Raises RequestError, ContextLengthError or QueueFullError (see `Admission.check`).
        """
        self._admission.check(request, self.limits)
        sequence = Sequence(self._next_sequence, request, now, self.limits.longest)
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
        spans = self._prefill_turn(now) or self._decode_rows()
        if spans and self.policy.mixing:
            self._fill(spans, self.limits.free_rows - len(spans), now)
        elif not spans:
            self._fill(spans, self.limits.free_rows, now)
        if not spans:
            return None
        roster = self._roster
        spans.sort(key=_SLOT)
        iteration = Iteration(
            self._next_iteration, tuple(roster.slots.operations), tuple(roster.samplings), tuple(spans)
        )
        self._next_iteration += 1
        roster.slots.operations.clear()
        roster.samplings.clear()
        self._in_flight.append(iteration)
        return iteration

    def take_events(self) -> list[Event]:
        """Events that no call has returned yet."""
        return self._roster.take_events()

    def _decode_rows(self) -> list[Span]:
        roster = self._roster
        if not len(roster.ready):
            return []
        share = math.ceil(len(roster.decoding) / self.policy.lanes)
        slots = roster.ready.take(min(share, self.limits.free_rows))
        if self.limits.pooled:
            slots = self._admission.make_room(slots)
        owners = roster.slots.owners
        return [owner.decode_span() for slot in slots if (owner := owners[slot]) is not None]

    def _prefill_turn(self, now: float) -> list[Span]:
        """Spans of an iteration that prefills although decode rows are ready; empty when it is not its turn."""
        spans: list[Span] = []
        if len(self._roster.ready) and self._prefill_only_in_a_row < self.limits.max_prefill_only_in_a_row:
            if not self.policy.mixing or self.limits.fixed_borders:
                self._fill(spans, self.limits.free_rows, now)
            self._prefill_only_in_a_row = self._prefill_only_in_a_row + 1 if spans else 0
        else:
            self._prefill_only_in_a_row = 0
        return spans

    def _fill(self, spans: list[Span], rows: int, now: float) -> None:
        """Append prefill spans of at most `rows` rows; a piece that must be alone goes only into an empty list."""
        roster = self._roster
        sequences = 0
        tried: set[int] = set()
        while rows > 0 and sequences < self.limits.max_prefill_sequences:
            sequence = self._next_prefill(tried, now)
            if sequence is None:
                return
            tried.add(sequence.id)
            piece = next_piece(sequence, self.limits)
            if piece.whole and spans:
                continue
            taken = piece.rows if piece.whole else min(piece.rows, self.limits.chunk, rows)
            spans.append(sequence.prefill_span(taken))
            if sequence.prefill_remaining <= 0:
                roster.prefilled(sequence)
            sequences += 1
            rows = 0 if piece.whole else rows - taken

    def _next_prefill(self, tried: set[int], now: float) -> Sequence | None:
        """The sequence with prefill rows that is due first, running or waiting; a waiting one is admitted."""
        roster = self._roster
        due = roster.waiting.due
        best = min(
            (sequence for sequence in roster.prefilling.values() if sequence.id not in tried),
            key=lambda sequence: (due(sequence), sequence.id),
            default=None,
        )
        candidate = self._admission.candidate()
        while candidate is not None and (best is None or due(candidate[0]) < due(best)):
            sequence, placement = candidate
            self._admission.admit(sequence, placement, now)
            if sequence.prefill_remaining > 0:
                return sequence
            candidate = self._admission.candidate()
        return best

    # --------------------------------------------------------------------------------------------------- results

    def complete(self, result: IterationResult, now: float) -> list[Event]:
        """Take the result of the oldest iteration in flight; returns what happened since the last call.

        Results of sequences that ended or were rewound meanwhile are dropped. Raises ProtocolError when the result
        is not of the oldest iteration: results come back in order, or the ring is broken.
        """
        if not self._in_flight or self._in_flight[0].id != result.iteration:
            expected = self._in_flight[0].id if self._in_flight else "none"
            raise ProtocolError(
                f"a result of iteration {result.iteration} came back, expected was {expected}; form the ring again"
            )
        iteration = self._in_flight.popleft()
        roster = self._roster
        ready: list[int] = []
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
        return roster.take_events()

    def _commit(self, sequence: Sequence, span: Span, samples: tuple[Sample, ...]) -> None:
        committed = sequence.commit(span, samples)
        self._roster.slots.confirm(sequence)
        if committed:
            self._roster.events.append(
                TokensCommitted(
                    sequence.id,
                    tuple(sample.token for sample in committed),
                    tuple(sample.logprob for sample in committed if sample.logprob is not None),
                )
            )

    def abandon(self, now: float, limits: Limits | None = None) -> list[Event]:
        """The ring is lost: nothing in flight comes back, and no stage holds any KV.

        Running sequences wait again, before new ones, and are replayed from their committed tokens. `limits`: of
        the new ring, when they changed; sequences that cannot fit there fail.
        """
        self._in_flight.clear()
        self._prefill_only_in_a_row = 0
        if limits is not None:
            self.limits = limits
        self._roster.reset(self.limits)
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
