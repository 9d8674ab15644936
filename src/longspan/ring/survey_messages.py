"""What a planner asks a stage about its machine, and what the stage answers."""

from __future__ import annotations

from typing import Annotated

import msgspec

from longspan.ring.frame import Kind
from longspan.ring.message_codec import MessageCodec

MOST_PEERS = 64

Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
Layers = Annotated[int, msgspec.Meta(ge=1, le=4096)]
Host = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class Survey(msgspec.Struct, frozen=True):
    """Measure how fast layers run here, with so few and so many of them. peers: stages to measure the way to."""

    few: Layers
    many: Layers
    peers: Annotated[tuple[tuple[Host, Port], ...], msgspec.Meta(max_length=MOST_PEERS)] = ()


class Speed(msgspec.Struct, frozen=True):
    """Seconds; fields as in `placement.node.Node`."""

    layer_seconds: Seconds
    row_seconds: Seconds
    position_seconds: Seconds
    head_seconds: Seconds
    iteration_seconds: Seconds


class NodeReport(msgspec.Struct, frozen=True):
    """A stage's machine. memory_bytes: what a stage may use there now. speed: None when it could not be measured.

    round_trips: seconds to each of the peers asked for, None for one that did not answer. reason: why there is no
    speed.
    """

    memory_bytes: Bytes
    speed: Speed | None
    round_trips: Annotated[tuple[Seconds | None, ...], msgspec.Meta(max_length=MOST_PEERS)]
    reason: Annotated[str, msgspec.Meta(max_length=2000)] = ""


SURVEY = MessageCodec(Kind.SURVEY, Survey)
REPORT = MessageCodec(Kind.REPORT, NodeReport)
