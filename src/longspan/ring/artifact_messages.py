"""How a stage asks its coordinator for parts of the model, and gets them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from longspan.ring.frame import Kind
from longspan.ring.message_codec import MessageCodec

CHUNK_BYTES = 256 << 10
"""Payload of one frame: small beside what a link's buffers hold, so that a slow link is not filled for seconds."""

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 44)]


class Want(msgspec.Struct, frozen=True):
    """Send this file of the layer package from `offset` on. name: its path in the package."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    offset: Count = 0


class Chunk(msgspec.Struct, frozen=True):
    """The next bytes of the file that was asked for, as payload. total: the file's size."""

    offset: Count
    total: Count


WANT = MessageCodec(Kind.WANT, Want)
CHUNK = MessageCodec(Kind.CHUNK, Chunk)
