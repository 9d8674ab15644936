"""Every live sequence and where it stands: waiting, prefilling, decoding, gone."""

from __future__ import annotations

from collections.abc import Iterable

from longspan.schedule.events import Admitted, Event, Failed, FailureKind, Finished, FinishReason, Preempted
from longspan.schedule.limits import Limits
from longspan.schedule.policy import Policy
from longspan.schedule.ready import ReadySlots
from longspan.schedule.sequence import Sequence, Status
from longspan.schedule.slots import Placement, SlotTable
from longspan.schedule.span import SlotSampling
from longspan.schedule.waiting import WaitingQueue


class Roster:
    """Moves sequences between their states; each move is one method, so nothing can be half done.

    sequences: every sequence that is not finished. prefilling: running, with prefill or replay rows to dispatch.
    ready: slots with a decode row to send. decoding: running sequences past their prefill.
    samplings, events: what the next iteration carries, and what the engine was not told yet.
    """

    def __init__(self, limits: Limits, policy: Policy) -> None:
        self.limits = limits
        self.policy = policy
        self.sequences: dict[int, Sequence] = {}
        self.waiting = WaitingQueue(policy)
        self.slots = SlotTable(limits, policy.prefix_reuse)
        self.prefilling: dict[int, Sequence] = {}
        self.decoding: dict[int, Sequence] = {}
        self.ready = ReadySlots()
        self.samplings: list[SlotSampling] = []
        self.events: list[Event] = []
        self.preemptions = 0
        self.longest_wait = 0.0
        self.most_overtakes = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.finished: dict[FinishReason, int] = dict.fromkeys(FinishReason, 0)
        self.failed: dict[FailureKind, int] = dict.fromkeys(FailureKind, 0)

    def enqueue(self, sequence: Sequence) -> None:
        """A new sequence waits."""
        self.sequences[sequence.id] = sequence
        self.waiting.add(sequence)

    def admit(self, sequence: Sequence, placement: Placement, now: float) -> None:
        """A waiting sequence takes a slot."""
        self.waiting.admit(sequence)
        self.most_overtakes = max(self.most_overtakes, sequence.overtakes)
        self.slots.take(sequence, placement)
        self.prefix_queries += sequence.prefill_end
        self.prefix_hits += placement.length
        self.samplings.append(SlotSampling(sequence.slot, sequence.request.sampling))
        if sequence.admitted_at is None:
            sequence.admitted_at = now
            self.longest_wait = max(self.longest_wait, now - sequence.arrival)
            sequence.cached_tokens = placement.length
        self.events.append(Admitted(sequence.id, placement.length))
        if sequence.prefill_remaining > 0:
            self.prefilling[sequence.id] = sequence
        else:
            self.prefilled(sequence)

    def prefilled(self, sequence: Sequence) -> None:
        """The last prefill row was dispatched; a replay decodes next, a fresh prompt once its sample is back."""
        sequence.standing = False
        self.prefilling.pop(sequence.id, None)
        self.decoding[sequence.id] = sequence
        if sequence.decodable:
            self.ready.add([sequence.slot])

    def preempt(self, sequence: Sequence) -> None:
        """A running sequence gives its slot and cells back and waits; its tokens stay."""
        self._leave_slot(sequence, keep=False)
        sequence.rewind()
        self.preemptions += 1
        self.waiting.add(sequence)
        self.events.append(Preempted(sequence.id))

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """The answer is complete; the KV stays cached."""
        self._remove(sequence, keep=True)
        self.finished[reason] += 1

    def fail(self, sequence: Sequence, kind: FailureKind, reason: str) -> None:
        """The sequence ends with an error; its slot is emptied, for what it holds is not certain."""
        self._remove(sequence, keep=False)
        self.failed[kind] += 1
        self.events.append(Failed(sequence.id, kind, reason))

    def end_of_answer(self, sequence: Sequence) -> None:
        """Finish a sequence that may not go on, and say so."""
        reason = FinishReason.STOP if sequence.stopped else FinishReason.LENGTH
        self.finish(sequence, reason)
        self.events.append(Finished(sequence.id, reason))

    def reset(self, limits: Limits) -> None:
        """No slot holds anything any more: running sequences wait again and keep their committed tokens.

        With other limits, what can never fit fails, and an answer that already fills the context ends.
        """
        running = list(self.slots.owners)
        self.limits = limits
        self.slots = SlotTable(limits, self.policy.prefix_reuse)
        self.ready = ReadySlots()
        self.prefilling.clear()
        self.decoding.clear()
        self.samplings.clear()
        for sequence in running:
            if sequence is not None:
                sequence.rewind()
                sequence.standing = sequence.generated > 0
                self.waiting.add(sequence)
                self.events.append(Preempted(sequence.id))
        for sequence in list(self.sequences.values()):
            sequence.limit_tokens(limits.longest)
            if sequence.prompt_length + 1 > limits.longest:
                reason = f"the ring formed again with room for {limits.longest} tokens; the prompt alone has "
                self.fail(sequence, FailureKind.CONTEXT, f"{reason}{sequence.prompt_length}")
            elif sequence.ended:
                self.end_of_answer(sequence)

    def blame(self, suspects: Iterable[int]) -> None:
        """A ring was lost with iterations of these sequences in flight: who was in too many such rings fails."""
        for identity in suspects:
            sequence = self.sequences.get(identity)
            if sequence is None:
                continue
            sequence.losses += 1
            if sequence.losses >= self.policy.loss_limit:
                reason = f"the ring was lost {sequence.losses} times in a row while it ran this request"
                self.fail(sequence, FailureKind.STAGE, reason)

    def take_events(self) -> list[Event]:
        """Events since the last call, in order."""
        events, self.events = self.events, []
        return events

    def _remove(self, sequence: Sequence, keep: bool) -> None:
        if sequence.status is Status.WAITING:
            self.waiting.remove(sequence)
        else:
            self._leave_slot(sequence, keep)
        sequence.status = Status.FINISHED
        if sequence.tail is not None:
            sequence.tail.forget()
        del self.sequences[sequence.id]

    def _leave_slot(self, sequence: Sequence, keep: bool) -> None:
        self.prefilling.pop(sequence.id, None)
        self.decoding.pop(sequence.id, None)
        self.ready.discard(sequence.slot)
        self.slots.release(sequence, keep)
