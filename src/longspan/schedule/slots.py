"""Who holds which slot and how many cells, and what stays cached there.

Everything that changes a slot's KV travels in the ordered stream of iterations: an operation is appended here in
the moment of the decision and goes out with the next iteration, so every stage sees the same history and evicts the
same things. A slot can be given away while rows of its last owner are still in flight.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import NamedTuple

from longspan.schedule.borders import restorable, shareable
from longspan.schedule.limits import Limits
from longspan.schedule.prefix import BLOCK, PrefixIndex
from longspan.schedule.sequence import NO_SLOT, Sequence, Status
from longspan.schedule.span import CopyPrefix, Drop, Operation


class Placement(NamedTuple):
    """Where a sequence could run.

    source: where positions [0, length) come from: `slot` itself when the sequence goes on in a cached slot, another
    slot to copy them from, or NO_SLOT when it starts cold. evict: cached slots to drop first. refuge: the slot that
    what is cached in `slot` moves to after that, or NO_SLOT.
    """

    slot: int
    length: int
    source: int
    evict: tuple[int, ...]
    refuge: int


class SlotTable:
    """Slots and cells of all stages, which are the same everywhere."""

    def __init__(self, limits: Limits, prefix_reuse: bool) -> None:
        self._limits = limits
        self._prefix_reuse = prefix_reuse
        self._empty = list(range(limits.slots))
        self._cached: OrderedDict[int, int] = OrderedDict()
        self.owners: list[Sequence | None] = [None] * limits.slots
        self.index = PrefixIndex(limits.slots)
        self.operations: list[Operation] = []
        self.running = 0
        self._used = 0

    @property
    def has_room(self) -> bool:
        """True when one more sequence may hold a slot."""
        return self.running < self._limits.concurrency

    @property
    def cells_used(self) -> int:
        """Cells that running sequences claim or that cached slots hold."""
        if self._limits.pooled:
            return self._used
        held = sum(self._cached.values())
        return held + sum(owner.dispatched for owner in self.owners if owner is not None)

    @property
    def cells_free(self) -> int:
        """Cells of the shared pool that nobody claims."""
        return self._limits.cells - self._used

    @property
    def cached_slots(self) -> int:
        """Slots without a running sequence whose KV is kept."""
        return len(self._cached)

    def place(self, sequence: Sequence, headroom: int) -> Placement | None:
        """Find a slot and cells for a sequence, leaving `headroom` cells free; None when there is no room.

        A cached slot is continued when that loses no more than it reuses, or when there is no room for a copy.
        """
        if not self.has_room:
            return None
        source, length = self._source(sequence)
        if source == NO_SLOT:
            return self._fit(sequence, self._free_slot(NO_SLOT), 0, NO_SLOT, headroom)
        held = self._cached.get(source)
        copy_wanted = held is None or held - length > length
        found = None
        if copy_wanted:
            found = self._fit(sequence, self._free_slot(source), length, source, headroom)
        if found is None and held is not None:
            found = self._fit(sequence, source, length, source, headroom)
        return found or self._fit(sequence, self._free_slot(NO_SLOT), 0, NO_SLOT, headroom)

    def by_cached_length(self, sequences: list[Sequence]) -> list[Sequence]:
        """Waiting sequences, those with the longest cached prefix first; equals keep their order."""
        if not self._prefix_reuse or self.index.empty:
            return sequences
        limits, indexed = self._limits, self.index.indexed
        return sorted(sequences, key=lambda sequence: -indexed(sequence, restorable(sequence, limits)))

    def take(self, sequence: Sequence, placement: Placement) -> None:
        """Give the sequence its slot."""
        for evicted in placement.evict:
            self._evict(evicted)
        slot, length = placement.slot, placement.length
        if placement.refuge != NO_SLOT:
            self._move(slot, placement.refuge)
        if placement.source == slot:
            self._used -= self._cached.pop(slot)
            self.index.forget(slot)
        else:
            self._empty.remove(slot)
            heapq.heapify(self._empty)
            if placement.source != NO_SLOT:
                self.operations.append(CopyPrefix(placement.source, slot, length))
                if placement.source in self._cached:
                    self._cached.move_to_end(placement.source)
        sequence.slot = slot
        sequence.status = Status.RUNNING
        sequence.dispatched = sequence.computed = length
        sequence.claim = sequence.prefill_end + 1
        self._used += sequence.claim
        self.owners[slot] = sequence
        self.running += 1
        self.confirm(sequence)

    def confirm(self, sequence: Sequence) -> None:
        """Let others start from what the ring has confirmed of a running sequence."""
        sequence.confirm_at = sequence.computed - sequence.computed % BLOCK + BLOCK
        if self._prefix_reuse:
            length = shareable(sequence, self._limits)
            if length // BLOCK > self.index.length(sequence.slot) // BLOCK:
                self.index.extend(sequence, sequence.slot, length)

    def release(self, sequence: Sequence, keep: bool) -> None:
        """Take the slot away; with `keep`, what is confirmed there stays cached."""
        slot = sequence.slot
        self.owners[slot] = None
        self.running -= 1
        self._used -= sequence.claim
        length = shareable(sequence, self._limits) if keep and self._prefix_reuse else 0
        if length >= BLOCK:
            self.index.extend(sequence, slot, length)
            self._cached[slot] = sequence.dispatched
            self._used += sequence.dispatched
        else:
            self.index.forget(slot)
            self.operations.append(Drop(slot))
            heapq.heappush(self._empty, slot)

    def claim_row(self, sequence: Sequence) -> bool:
        """Claim the cell of one more row, evicting cached slots for it; False when the pool is exhausted."""
        if sequence.dispatched < sequence.claim:
            return True
        while self._used >= self._limits.cells:
            if not self._cached:
                return False
            self._evict(next(iter(self._cached)))
        sequence.claim += 1
        self._used += 1
        return True

    def _source(self, sequence: Sequence) -> tuple[int, int]:
        if not self._prefix_reuse:
            return NO_SLOT, 0
        match = self.index.longest(sequence, restorable(sequence, self._limits))
        if match is None:
            return NO_SLOT, 0
        length = match.length
        if self._limits.fixed_borders:
            length -= length % self._limits.chunk
        return (match.slot, length) if length else (NO_SLOT, 0)

    def _free_slot(self, source: int) -> int:
        """A slot, empty or cached, other than `source`: the one that joins the running slots to the fewest runs.

        The library takes consecutive slots through the layers together, others one after the other. Of equals, the
        lowest empty one, else the one that is unused for the longest time.
        """
        free = [*sorted(self._empty), *(slot for slot in self._cached if slot != source)]
        if not free:
            return NO_SLOT
        owners = (None, *self.owners, None)
        return max(free, key=lambda slot: (owners[slot] is not None) + (owners[slot + 2] is not None))

    def _fit(self, sequence: Sequence, slot: int, length: int, source: int, headroom: int) -> Placement | None:
        """Complete a placement: what must go to make place and cells, the longest unused first, and what moves."""
        if slot == NO_SLOT:
            return None
        evict: list[int] = []
        taken_over = slot in self._cached and source != slot
        if taken_over and not self._empty:
            evict.append(next(other for other in self._cached if other != source))
        if self._limits.pooled:
            free = self.cells_free - headroom - sequence.prefill_end - 1
            free += sum([self._cached[other] for other in evict])
            if source == slot:
                free += self._cached[slot]
            for other, cells in self._cached.items():
                if free >= 0:
                    break
                if other != source and other not in evict:
                    evict.append(other)
                    free += cells
            if free < 0:
                return None
        refuge = NO_SLOT
        if taken_over and slot not in evict:
            refuge = evict[0] if evict else min(self._empty)
        return Placement(slot, length, source, tuple(evict), refuge)

    def _move(self, slot: int, refuge: int) -> None:
        """Move what is cached in a slot to an empty one; it keeps its place in the order of use."""
        length = self.index.length(slot)
        self.index.move(slot, refuge)
        self._used += length - self._cached[slot]
        self._cached[slot] = length
        self._cached = OrderedDict(
            (refuge if held == slot else held, cells) for held, cells in self._cached.items()
        )
        self._empty.remove(refuge)
        self._empty.append(slot)
        heapq.heapify(self._empty)
        self.operations += (CopyPrefix(slot, refuge, length), Drop(slot))

    def _evict(self, slot: int) -> None:
        self._used -= self._cached.pop(slot)
        self.index.forget(slot)
        self.operations.append(Drop(slot))
        heapq.heappush(self._empty, slot)
