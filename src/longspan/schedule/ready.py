"""The decode rows that could run now, in slot order, behind a rotating cursor."""

from __future__ import annotations

import bisect
from collections.abc import Sequence


class ReadySlots:
    """Slots whose sequence has a decode row to send.

    Kept sorted: spans go out in slot order (consecutive slots share a pass of the library), and the cursor makes a
    budget smaller than the rows fair.
    """

    def __init__(self) -> None:
        self._slots: list[int] = []
        self._cursor = 0

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def slots(self) -> Sequence[int]:
        """All of them, ascending. Not to be changed."""
        return self._slots

    @property
    def cursor(self) -> int:
        """The slot from which on they have their turn."""
        return self._cursor

    def take_these(self, slots: list[int]) -> list[int]:
        """Remove these, which are there and ascending, and return them."""
        leaving = set(slots)
        self._slots = [slot for slot in self._slots if slot not in leaving]
        self._cursor = slots[-1] + 1
        return slots

    def __contains__(self, slot: int) -> bool:
        index = bisect.bisect_left(self._slots, slot)
        return index < len(self._slots) and self._slots[index] == slot

    def add(self, slots: list[int]) -> None:
        """Add slots that are not there yet."""
        if len(slots) == 1:
            bisect.insort(self._slots, slots[0])
        else:
            self._slots += slots
            self._slots.sort()  # two sorted runs in practice: linear

    def discard(self, slot: int) -> None:
        """Take a slot out if it is there."""
        index = bisect.bisect_left(self._slots, slot)
        if index < len(self._slots) and self._slots[index] == slot:
            del self._slots[index]

    def take(self, count: int) -> list[int]:
        """Remove and return up to `count` slots from the cursor on, in slot order."""
        slots = self._slots
        if count >= len(slots):
            self._slots = []
            self._cursor = 0
            return slots
        if count <= 0:
            return []
        start = bisect.bisect_left(slots, self._cursor)
        taken = slots[start : start + count]
        del slots[start : start + count]
        wrapped = count - len(taken)
        if wrapped:
            taken = slots[:wrapped] + taken
            self._cursor = slots[wrapped - 1] + 1
            del slots[:wrapped]
        else:
            self._cursor = taken[-1] + 1
        return taken
