"""Finds the slot whose KV shares the longest prefix with a prompt.

Tokens are indexed in blocks by a chained hash, so a lookup is a binary search over the prompt's blocks. A hit is
then compared token by token: a hash collision can cost time, never correctness.
"""

from __future__ import annotations

from typing import NamedTuple

from longspan.schedule.sequence import Sequence

BLOCK = 16
"""Tokens of a block; shorter common prefixes are not looked for."""

_CANDIDATES = 4


class Match(NamedTuple):
    """Positions [0, length) of a slot hold the wanted tokens."""

    slot: int
    length: int


class PrefixIndex:
    """What confirmed KV each slot holds."""

    def __init__(self, slots: int) -> None:
        self._owners: list[Sequence | None] = [None] * slots
        self._lengths = [0] * slots
        self._blocks: dict[int, dict[int, None]] = {}

    @property
    def empty(self) -> bool:
        """True when no slot holds anything that could be shared."""
        return not self._blocks

    def length(self, slot: int) -> int:
        """Positions of the slot that others may start from."""
        return self._lengths[slot]

    def extend(self, sequence: Sequence, slot: int, length: int) -> None:
        """The slot now holds the sequence's first `length` tokens, confirmed."""
        if self._owners[slot] is not sequence:
            self.forget(slot)
            self._owners[slot] = sequence
        old, self._lengths[slot] = self._lengths[slot], length
        if length // BLOCK > old // BLOCK:
            for block_hash in _hashes(sequence, length)[old // BLOCK : length // BLOCK]:
                self._blocks.setdefault(block_hash, {})[slot] = None

    def forget(self, slot: int) -> None:
        """The slot's KV is gone."""
        owner = self._owners[slot]
        if owner is None:
            return
        for block_hash in owner.hashes[: self._lengths[slot] // BLOCK]:
            holders = self._blocks[block_hash]
            del holders[slot]
            if not holders:
                del self._blocks[block_hash]
        self._owners[slot] = None
        self._lengths[slot] = 0

    def move(self, slot: int, target: int) -> None:
        """What a slot holds is in another one now, and no longer there."""
        owner, length = self._owners[slot], self._lengths[slot]
        self.forget(slot)
        if owner is not None:
            self.extend(owner, target, length)

    def indexed(self, sequence: Sequence, limit: int) -> int:
        """About how many positions `longest` would find: whole blocks, by their hashes alone."""
        if limit < BLOCK:
            return 0
        hashes = sequence.hashes if len(sequence.hashes) * BLOCK > limit - BLOCK else _hashes(sequence, limit)
        if hashes[0] not in self._blocks:
            return 0
        return BLOCK * self._known_blocks(hashes, limit // BLOCK)

    def longest(self, sequence: Sequence, limit: int) -> Match | None:
        """The longest common prefix of the sequence's tokens with any slot, at most `limit` positions."""
        if limit < BLOCK or not self._blocks:
            return None
        hashes = _hashes(sequence, limit)
        low = self._known_blocks(hashes, limit // BLOCK)
        if not low:
            return None
        best: Match | None = None
        for slot in list(self._blocks[hashes[low - 1]])[:_CANDIDATES]:
            length = self._common(sequence, slot, low * BLOCK, limit)
            if best is None or length > best.length:
                best = Match(slot, length)
        return best if best is not None and best.length >= BLOCK else None

    def _known_blocks(self, hashes: list[int], high: int) -> int:
        low = 0
        while low < high:  # a slot that holds block i holds all blocks before it
            middle = (low + high + 1) // 2
            if hashes[middle - 1] in self._blocks:
                low = middle
            else:
                high = middle - 1
        return low

    def _common(self, sequence: Sequence, slot: int, length: int, limit: int) -> int:
        owner = self._owners[slot]
        if owner is None or owner.request.cache_salt != sequence.request.cache_salt:
            return 0
        if owner.tokens[:length] != sequence.tokens[:length]:
            return 0
        limit = min(limit, self._lengths[slot])
        while length < limit and owner.tokens[length] == sequence.tokens[length]:
            length += 1
        return length


def _hashes(sequence: Sequence, length: int) -> list[int]:
    """Chained hashes of the sequence's blocks, computed as far as needed and kept with the sequence."""
    hashes = sequence.hashes
    previous = hashes[-1] if hashes else hash((sequence.request.cache_salt,))
    for start in range(len(hashes) * BLOCK, length - BLOCK + 1, BLOCK):
        previous = hash((previous, tuple(sequence.tokens[start : start + BLOCK])))
        hashes.append(previous)
    return hashes
