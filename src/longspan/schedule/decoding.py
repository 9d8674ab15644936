"""The decode rows of an iteration: one for each ready sequence, or windows where there is speculation."""

from __future__ import annotations

from collections.abc import Sized
from operator import attrgetter

from longspan.schedule.admission import Admission
from longspan.schedule.geometry import NO_ROWS, ExactShape, decode_shape, window_shape
from longspan.schedule.lanes import lane, lane_size
from longspan.schedule.roster import Roster
from longspan.schedule.span import Span
from longspan.schedule.speculator import Speculator

_SLOT = attrgetter("slot")


class Decoding:
    """Chooses who decodes, and makes the spans, in slot order."""

    def __init__(
        self,
        roster: Roster,
        admission: Admission,
        speculator: Speculator | None,
        in_flight: Sized,
    ) -> None:
        """in_flight: the iterations that are on their way."""
        self._roster = roster
        self._in_flight = in_flight
        self._admission = admission
        self._speculator = speculator

    def spans(self, now: float) -> tuple[list[Span], ExactShape]:
        """The decode rows or windows that go out now, and their shape."""
        slots = self._slots()
        if self._speculator is not None:
            return self._windows(self._speculator, slots, now)
        owners = self._roster.slots.owners
        spans = [owner.decode_span() for slot in slots if (owner := owners[slot]) is not None]
        return spans, decode_shape(slots, [span.start for span in spans])

    def _slots(self) -> list[int]:
        """Slots whose decode row goes out now: all that are ready, as far as the lane and the limits reach."""
        ready, limits = self._roster.ready, self._roster.limits
        slots: list[int] = []
        while len(ready) and not slots:
            slots = self._lane(min(self._share, limits.free_rows))
            if not slots:
                break
            if limits.pooled:
                slots = self._admission.make_room(slots)  # in need, those that were taken are preempted
        return slots

    def _lane(self, size: int) -> list[int]:
        """Take the ready slots of a lane whose rest is not on its way; see `lanes.lane`."""
        roster, ready = self._roster, self._roster.ready
        waits = self._speculator is None or self._speculator.in_step
        if roster.policy.lanes > 1 and size > 1 and waits:
            here = set(ready.slots)
            coming: list[int] = []
            ahead: list[int] = []
            for sequence in roster.decoding.values():
                if sequence.slot not in here:
                    runs_ahead = sequence.tail is not None and sequence.tail.runs_ahead
                    (ahead if runs_ahead else coming).append(sequence.slot)
            slots = lane(ready.slots, coming, size, ready.cursor, ahead)
            if slots:
                return ready.take_these(slots)
            if len(self._in_flight):
                return []
        return ready.take(size)

    @property
    def _share(self) -> int:
        """Most sequences that decode in one iteration."""
        return lane_size(len(self._roster.decoding), self._roster.policy.lanes)

    def _windows(self, speculator: Speculator, slots: list[int], now: float) -> tuple[list[Span], ExactShape]:
        """Windows of the sequences on `slots`, and windows on a guess of others that have some in flight."""
        roster = self._roster
        decoding = roster.decoding.values()
        if not decoding:
            return [], NO_ROWS
        taken = set(slots)
        ready = [sequence.tail for sequence in decoding if sequence.slot in taken]
        running = [
            sequence.tail
            for sequence in decoding
            if sequence.slot not in taken and sequence.slot not in roster.ready
        ]
        history = sum([len(sequence.tokens) for sequence in decoding]) / len(decoding)
        speculator.refresh(len(decoding), self._share, history, now)
        # A pool of cells is shared out row by row, so there nobody may run ahead on a guess.
        rows = len(ready) if roster.limits.pooled else roster.limits.free_rows
        spans = speculator.deal(ready, running, rows, self._share, now)
        spans.sort(key=_SLOT)
        return spans, window_shape(spans)
