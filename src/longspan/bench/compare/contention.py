"""Whether requests of a pass really ran at the same time, from the server's trace and the client's clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from longspan.bench.load.answer import LoadAnswer
from longspan.schedule.trace import TraceRecord

LEAST_OVERLAP = 0.5
"""Share of the asked concurrency that the requests under way must average."""


class Contention(msgspec.Struct, frozen=True):
    """One pass. concurrency: requests under way, averaged over the time. iterations: of the trace, warm-up
    included; shared: of those with several sequences; mixed: with prompts beside decoding. most_sequences: in one
    iteration."""

    concurrency: float
    iterations: int
    shared: int
    mixed: int
    most_sequences: int

    def proven(self, asked: int) -> bool:
        """Whether about `asked` requests ran together. One request at a time needs no proof."""
        return asked <= 1 or (self.shared > 0 and self.concurrency >= LEAST_OVERLAP * asked)


def contention(answers: Sequence[LoadAnswer], records: Iterable[TraceRecord]) -> Contention:
    """Of one pass."""
    done = [answer for answer in answers if answer.chunks]
    begin = min((answer.sent for answer in done), default=0.0)
    end = max((answer.chunks[-1] for answer in done), default=0.0)
    busy = sum(answer.latency for answer in done)
    shapes = [(len(record.spans), record.geometry.mixed) for record in records]
    return Contention(
        concurrency=busy / (end - begin) if end > begin else 0.0,
        iterations=len(shapes),
        shared=sum(spans > 1 for spans, _ in shapes),
        mixed=sum(mixed for _, mixed in shapes),
        most_sequences=max((spans for spans, _ in shapes), default=0),
    )
