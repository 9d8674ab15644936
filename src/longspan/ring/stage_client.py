"""One remote stage, as the coordinator talks to it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from longspan import __version__
from longspan.errors import ModelError, ProtocolError, RingError
from longspan.ring.artifact_messages import WANT, Want
from longspan.ring.artifact_source import ArtifactSource
from longspan.ring.assignment import MAX_CELLS
from longspan.ring.delay import delayed
from longspan.ring.dial import dial
from longspan.ring.frame import PROTOCOL_VERSION, Frame, Kind
from longspan.ring.link import Link
from longspan.ring.messages import (
    MAX_ROWS,
    Assignment,
    Failed,
    Hello,
    Ping,
    Progress,
    Ready,
    Refuse,
    decode,
    encode,
)
from longspan.ring.ring_plan import StagePlace
from longspan.ring.round_trips import RoundTrips
from longspan.ring.security import OPEN, Security
from longspan.ring.tcp import TcpLink
from longspan.runtime.base import Capacity
from longspan.status import StageStatus

CONNECT_SECONDS = 10.0
FIRST_SIGN_SECONDS = 30.0
"""Longest time until a stage that was given layers says anything: a process that is stopped still accepts."""

MOST_PINGS = 64
LOAD_SECONDS = 900.0
"""Longest time between two signs of life of a stage that loads its layers."""

log = logging.getLogger(__name__)


class StageClient:
    """The control link to one stage. state, detail: for a person. mute: it was given up because it said nothing."""

    def __init__(
        self,
        place: StagePlace,
        on_progress: Callable[[str], None],
        security: Security = OPEN,
        artifacts: ArtifactSource | None = None,
    ) -> None:
        """artifacts: where a stage that lacks its layers gets them from."""
        assert place.address is not None
        self.place = place
        self.state = "missing"
        self.detail = "not connected yet"
        self.mute = False
        self.name = f"stage {place.index} (layers {place.start}-{place.end}, {place.address[0]}:{place.address[1]})"
        self._address = place.address
        self._on_progress = on_progress
        self._security = security
        self._artifacts = artifacts
        self._link: Link | None = None
        self._ready: Ready | None = None
        self._pings: dict[int, float] = {}
        self._round_trips = RoundTrips()
        self._ping_number = 0
        self._heard = 0.0

    @property
    def link(self) -> Link:
        """The open link."""
        assert self._link is not None
        return self._link

    async def open(self, ring: str, digest: str, assignment: Assignment, delay_ms: float) -> Capacity:
        """Connect, hand over the assignment, wait until the stage is ready. Raises RingError naming the stage."""
        try:
            raw = await dial(*self._address, CONNECT_SECONDS, self._security, "stage")
            self._link = delayed(raw, delay_ms)
            hello = Hello(PROTOCOL_VERSION, __version__, "coordinator", ring, digest, assignment=assignment)
            await self._link.send(encode(hello))
            self.state, self.detail = "loading", "connected"
            try:
                ready = await self._await_ready(raw, assignment)
            except RingError as error:
                if raw.statistics.frames_received or self._security.active:
                    raise
                raise RingError(f"{error} before it said a word: it may ask for --keys or --token-file") from None
        except RingError as error:
            if self.state != "failed":
                self.state = "missing" if self._link is None else "failed"
            self.detail = str(error)
            raise RingError(f"{self.name}: {error}") from None
        self._ready = ready
        self.state, self.detail = "ready", ""
        raw.open_payloads()
        return Capacity(ready.slots, ready.cells_per_slot, ready.max_rows, ready.exact_rows)

    async def _await_ready(self, raw: TcpLink, assignment: Assignment) -> Ready:
        patience = FIRST_SIGN_SECONDS
        while True:
            try:
                async with asyncio.timeout(patience):
                    frame = await raw.receive()
            except TimeoutError:
                self.mute = True
                raise RingError(f"no sign of life for {patience:g} s while it should load its layers") from None
            patience = LOAD_SECONDS
            if frame.kind is Kind.PROGRESS:
                self.detail = decode(frame, Progress).text
                self._on_progress(f"stage {self.place.index}: {self.detail}")
            elif frame.kind is Kind.READY:
                return _checked(decode(frame, Ready), assignment)
            elif frame.kind is Kind.WANT:
                await self._send_artifact(WANT.decode(frame), assignment)
            elif frame.kind is Kind.REFUSE:
                raise RingError(f"refused: {decode(frame, Refuse).reason}")
            elif frame.kind is Kind.FAILED:
                raise RingError(decode(frame, Failed).reason)
            else:
                raise ProtocolError(f"unexpected {frame.kind.name} frame before the stage was ready")

    async def _send_artifact(self, want: Want, assignment: Assignment) -> None:
        if self._artifacts is None:
            raise RingError("it has no layers, and this coordinator has none to give")
        try:
            await self._artifacts.send(self.link, want, assignment.start, assignment.end)
        except ModelError as error:
            raise RingError(f"its layers cannot be sent: {error}") from None

    async def receive(self) -> Frame:
        """The next frame that is not a Pong."""
        while True:
            frame = await self.link.receive()
            self.heard()
            if frame.kind is not Kind.PONG:
                return frame
            number = decode(frame, Ping).number
            sent = self._pings.get(number)
            if sent is not None:
                self._measured(time.perf_counter() - sent)
            # Answers come in order: who answers this ping is past the ones before.
            self._pings = {later: at for later, at in self._pings.items() if later > number}

    def _measured(self, round_trip: float) -> None:
        """A ping has come back. A link that is slower than it was goes on: only silence ends it."""
        self.link.statistics.round_trip = round_trip
        if self._round_trips.note(round_trip):
            log.warning("%s: %s", self.name, self._round_trips.remark or "its round trip is the old one again")

    def ping(self) -> None:
        """Ask for a sign of life. What a full link does not take counts as asked: it is full of other questions."""
        self._ping_number += 1
        if len(self._pings) < MOST_PINGS:
            self._pings[self._ping_number] = time.perf_counter()
        self.link.send_at_once(encode(Ping(self._ping_number)))

    def heard(self) -> None:
        """The stage has sent something: a sign of life, also while a busy link takes no pings."""
        self._heard = time.perf_counter()

    def silence(self) -> float:
        """Seconds since the oldest ping that was not answered, or since anything came; 0 when all are answered."""
        if not self._pings:
            return 0.0
        return time.perf_counter() - max(self._heard, next(iter(self._pings.values())))

    async def close(self) -> None:
        """Close the link."""
        if self._link is not None:
            await self._link.close()

    def status(self, compute_ms: float | None) -> StageStatus:
        """The stage for a person."""
        round_trip = self._link.statistics.round_trip if self._link is not None else None
        ready = self._ready
        return StageStatus(
            self.place.index,
            self.place.start,
            self.place.end,
            f"{self._address[0]}:{self._address[1]}",
            self.state,
            self.detail or self._round_trips.remark,
            ready.pid if ready else None,
            None if round_trip is None else round_trip * 1000,
            compute_ms,
            ready.slots if ready else None,
            ready.cells_per_slot if ready else None,
            ready.exact_rows if ready else None,
            ready.memory_bytes if ready else None,
        )


def _checked(ready: Ready, assignment: Assignment) -> Ready:
    if not (
        ready.slots == assignment.slots
        and 2 <= ready.cells_per_slot <= MAX_CELLS
        and 1 <= ready.max_rows <= MAX_ROWS
        and 2 <= ready.exact_rows <= MAX_ROWS + 1
    ):
        raise ProtocolError(
            f"the stage announces an impossible capacity for {assignment.slots} slots of "
            f"{assignment.cells_per_slot} positions: {ready}"
        )
    return ready
