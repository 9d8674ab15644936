"""How often the library goes through the layers for an iteration, and how much KV it reads on the way.

One pass (a sub-batch, see `schedule.sub_batches`) joins spans on consecutive slots and takes as many rows of each
as the shortest has left. It reads as many positions for each of its sequences as the longest of them holds. Source:
measured on llama.cpp b11549; on a trace of the demo model, a fit that counts the reads of every pass this way is a
tenth better than one that counts each history once.

Here the passes are counted without making them: the rows of consecutive spans are a profile, and each pass is a
rectangle under it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple


class Block(NamedTuple):
    """Spans of `rows` rows each on the slots [first, first + slots), behind up to `history` positions."""

    first: int
    slots: int
    rows: int
    history: int


class Passes(NamedTuple):
    """How many passes over the layers, and the positions that all of them together read."""

    number: int
    reads: int


def runs_of(slots: list[int], histories: list[int]) -> list[Block]:
    """Blocks of one row on each of `slots`, which ascend; `histories`: positions before each."""
    if not slots:
        return []
    if slots[-1] - slots[0] == len(slots) - 1:
        return [Block(slots[0], len(slots), 1, max(histories))]
    blocks = []
    start = 0
    for index, (left, right) in enumerate(pairwise(slots), start=1):
        if right != left + 1:
            blocks.append(Block(slots[start], index - start, 1, max(histories[start:index])))
            start = index
    blocks.append(Block(slots[start], len(slots) - start, 1, max(histories[start:])))
    return blocks


def count_passes(blocks: Iterable[Block]) -> Passes:
    """The passes of blocks in slot order."""
    number = reads = 0
    chain: list[Block] = []
    for block in blocks:
        if chain and chain[-1].first + chain[-1].slots != block.first:
            number, reads = _add(chain, number, reads)
            chain = []
        chain.append(block)
    return Passes(*_add(chain, number, reads)) if chain else Passes(0, 0)


def _add(chain: list[Block], number: int, reads: int) -> tuple[int, int]:
    """Add the passes of blocks that follow each other without a gap."""
    todo = [chain]
    while todo:
        blocks = todo.pop()
        lowest = min([block.rows for block in blocks])
        number += 1
        longest = max([block.history for block in blocks]) + lowest
        reads += longest * sum([block.slots for block in blocks])
        higher: list[Block] = []
        for block in blocks:
            if block.rows > lowest:
                higher.append(block)
            elif higher:
                todo.append(higher)
                higher = []
        if higher:
            todo.append(higher)
    return number, reads
