"""How llama.cpp cuts a batch of several KV streams into sub-batches.

Measured on build 11549 with one stream a sequence: one sub-batch joins only sequences with consecutive ids in
ascending order and takes the same number of rows of each. The order matters to whoever reads a tensor in the middle
of the graph, the count to whoever predicts what an iteration costs.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

SubBatch = list[tuple[int, int, int]]
"""Parts of one sub-batch in order: (index of the span, first row of the span, rows)."""


def places(prefill: Iterable[int], decoding: Container[int]) -> dict[int, int]:
    """Where in the batch the prefill of each slot goes: -1 before all decode rows, 1 behind them, 0 among them.

    prefill, decoding: slots of the spans. A sub-batch that joins a long history with others reads as much for each
    of them: four streams beside a prompt that is 1,400 positions long would pay for 1,400 each. Neighbouring slots
    of prefill whose next one does not decode are joined by nobody at the head, and those whose slot before does not
    decode by nobody at the end. There are hardly more sub-batches for it, because a prompt needs some for itself in
    any case; only between two slots that decode it stays, where it would cut a sub-batch of theirs in two.
    """
    order = sorted(prefill)
    found: dict[int, int] = {}
    for slot in reversed(order):
        found[slot] = found.get(slot + 1, 0 if slot + 1 in decoding else -1)
    for slot in order:
        if not found[slot]:
            found[slot] = found.get(slot - 1, 0 if slot - 1 in decoding else 1)
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
