"""When the pieces of an answer came."""

from __future__ import annotations

import asyncio
import dataclasses
import time

from longspan.engine import RequestStream


@dataclasses.dataclass
class Timeline:
    """One answer. submitted, arrivals: seconds of one clock; tokens: all of them; finish_reason: how it ended."""

    submitted: float
    arrivals: list[float] = dataclasses.field(default_factory=list)
    tokens: list[int] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None

    @property
    def time_to_first_token(self) -> float:
        """Seconds from submission to the first piece."""
        return self.arrivals[0] - self.submitted

    def gaps(self, start: float = float("-inf"), end: float = float("inf")) -> list[float]:
        """Seconds between neighbouring pieces, of those that end within [start, end]."""
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False) if start <= b <= end]


async def follow(stream: RequestStream, begun: asyncio.Event | None = None) -> Timeline:
    """Read a stream to its end; sets `begun` at its first piece."""
    timeline = Timeline(time.perf_counter())
    async for piece in stream:
        if piece.tokens:
            timeline.arrivals.append(time.perf_counter())
            timeline.tokens += piece.tokens
            if begun is not None:
                begun.set()
        timeline.finish_reason = piece.finish_reason
    return timeline
