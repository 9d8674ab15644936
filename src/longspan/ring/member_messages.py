"""How a stage registers with a coordinator, and stays registered."""

from __future__ import annotations

from typing import Annotated

import msgspec

from longspan.ring.frame import Kind
from longspan.ring.message_codec import MessageCodec

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]


class HeldLayers(msgspec.Struct, frozen=True):
    """What a stage has loaded, and would not have to load again."""

    digest: Annotated[str, msgspec.Meta(max_length=64)]
    start: Count
    end: Count


class Join(msgspec.Struct, frozen=True):
    """Register, or renew the lease.

    name: the stage's identity; who comes with the same one takes the place of the one before. incarnation: random,
    of this process. host, port: where it listens; an empty host is the one that it comes from.
    """

    name: Name
    incarnation: Annotated[str, msgspec.Meta(min_length=8, max_length=64)]
    host: Annotated[str, msgspec.Meta(max_length=255)]
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    holds: HeldLayers | None = None


class Lease(msgspec.Struct, frozen=True):
    """The stage is a member for so many seconds from now on."""

    seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)]


class Leave(msgspec.Struct, frozen=True):
    """The stage is no member any more, and shall not come back by itself."""

    reason: Annotated[str, msgspec.Meta(max_length=1000)]


JOIN = MessageCodec(Kind.JOIN, Join)
LEASE = MessageCodec(Kind.LEASE, Lease)
LEAVE = MessageCodec(Kind.LEAVE, Leave)
