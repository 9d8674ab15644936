"""What must hold of a planner at every moment, checked from the inside."""

from __future__ import annotations

from longspan.schedule.limits import Limits
from longspan.schedule.planner import Planner
from longspan.schedule.sequence import NO_SLOT, Status
from longspan.schedule.span import Iteration, Phase


def check_planner(planner: Planner) -> None:
    """Every sequence stands in exactly one place, and no slot or cell is lost."""
    roster = planner._roster
    slots = roster.slots
    running = {owner.id: owner for owner in slots.owners if owner is not None}
    waiting = {sequence.id: sequence for sequence in roster.waiting}
    assert running.keys() | waiting.keys() == roster.sequences.keys()
    assert not running.keys() & waiting.keys()
    assert len(running) == slots.running <= planner.limits.concurrency
    for slot, owner in enumerate(slots.owners):
        assert owner is None or (owner.slot == slot and owner.status is Status.RUNNING)
    assert all(sequence.slot == NO_SLOT and sequence.status is Status.WAITING for sequence in waiting.values())

    taken = {owner.slot for owner in running.values()}
    parts = [set(slots._empty), set(slots._cached), taken]
    assert len(slots._empty) == len(parts[0])
    assert set.union(*parts) == set(range(planner.limits.slots))
    assert sum(map(len, parts)) == planner.limits.slots
    assert slots._used == sum(slots._cached.values()) + sum(owner.claim for owner in running.values())
    assert slots._used <= planner.limits.cells or not planner.limits.pooled

    assert roster.prefilling.keys() == {key for key, owner in running.items() if owner.prefill_remaining > 0}
    assert roster.decoding.keys() == running.keys() - roster.prefilling.keys()
    assert list(roster.ready._slots) == sorted(owner.slot for owner in running.values() if owner.decodable)
    for owner in running.values():
        assert owner.computed <= owner.dispatched <= len(owner.tokens)
        assert owner.dispatched <= planner.limits.cells_per_slot


def check_iteration(iteration: Iteration, limits: Limits) -> None:
    """An iteration keeps every limit, and its spans are in order."""
    slots = [span.slot for span in iteration.spans]
    assert slots == sorted(set(slots)), "spans are ordered by slot and a slot appears once"
    assert iteration.spans, "an iteration has at least one span"
    assert iteration.rows <= limits.rows
    exact = [span for span in iteration.spans if span.phase in (Phase.DECODE, Phase.VERIFY)]
    if exact or not limits.fixed_borders:
        assert iteration.rows < limits.exact_rows
    if iteration.rows >= limits.exact_rows:
        assert len(iteration.spans) == 1, "a span beyond the exact-row limit runs alone"
    prefills = [span for span in iteration.spans if span.phase in (Phase.PREFILL, Phase.RECOMPUTE)]
    assert len(prefills) <= limits.max_prefill_sequences
    for span in iteration.spans:
        assert span.end <= limits.cells_per_slot
        assert all(0 <= row < len(span.tokens) for row in span.sample_rows)
        assert span.phase is not Phase.RECOMPUTE or not span.sample_rows
        assert span.phase is not Phase.DECODE or (len(span.tokens) == 1 and span.sample_rows == (0,))
