"""How llama.cpp cuts a batch of several KV streams into sub-batches.

Measured on build 11549 with one stream a sequence: one sub-batch joins only sequences with consecutive ids in
ascending order and takes the same number of rows of each. The order matters to whoever reads a tensor in the middle
of the graph, the count to whoever predicts what an iteration costs.
"""

from __future__ import annotations

from collections.abc import Sequence

SubBatch = list[tuple[int, int, int]]
"""Parts of one sub-batch in order: (index of the span, first row of the span, rows)."""


def leading(spans: Sequence[tuple[int, bool]]) -> list[bool]:
    """Which spans go to the head of the batch. spans: (slot, whether its rows decode or verify), ordered by slot.

    Prefill in neighbouring slots does, unless the slot behind them decodes. A sub-batch that joins a long history
    with others reads as much for each of them: four streams beside a prompt that is 1,400 positions long would pay
    for 1,400 each. At the head, with nothing on the next slot, prefill is joined by nobody, and the number of
    sub-batches stays the same, because it needs more of them than those that decode in any case.
    """
    found = [False] * len(spans)
    following: tuple[int, bool, bool] | None = None  # slot, decodes, leads
    for index in range(len(spans) - 1, -1, -1):
        slot, decodes = spans[index]
        neighbour = following if following is not None and following[0] == slot + 1 else None
        found[index] = not decodes and (neighbour is None or (not neighbour[1] and neighbour[2]))
        following = (slot, decodes, found[index])
    return found


def sub_batches(spans: Sequence[tuple[int, int]], limit: int) -> list[SubBatch]:
    """The sub-batches of spans given as (slot, rows) in the order of the batch, with at most `limit` rows each."""
    remaining = [rows for _, rows in spans]
    first = 0
    batches: list[SubBatch] = []
    while first < len(spans):
        if remaining[first] == 0:
            first += 1
            continue
        members = [first]
        slot = spans[first][0]
        for index in range(first + 1, len(spans)):
            if remaining[index] and spans[index][0] == slot + 1 and len(members) < limit:
                members.append(index)
                slot += 1
        rows = min(min(remaining[index] for index in members), max(1, limit // len(members)))
        batches.append([(index, spans[index][1] - remaining[index], rows) for index in members])
        for index in members:
            remaining[index] -= rows
    return batches
