"""What the headers of frames say."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import numpy as np

from longspan.errors import ProtocolError
from longspan.ring.frame import Frame, Kind
from longspan.runtime.base import Activations
from longspan.schedule.span import Iteration, IterationResult, SpanFailure, StageTiming

DTYPES: dict[str, np.dtype[np.floating[Any]]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}
"""Activation types on the wire, little-endian."""

MAX_SPANS = 4096
MAX_ROWS = 65536
MAX_WIDTH = 1 << 17


class Assignment(msgspec.Struct, frozen=True):
    """What the coordinator asks of a stage.

    start, end: layer range. layers: of the whole model. next_address: (host, port) of the stage that follows, None
    for the last. slots, cells_per_slot: KV to allocate. dtype: of activations between stages. next_delay_ms,
    return_delay_ms: emulated one-way delay of what this stage sends to the next stage and to the coordinator.
    trees: spans may be token trees, of one slot. mtp_head: sha256 of the head that the last stage has to draft
    with; empty for whichever it has.
    """

    stage: int
    stages: int
    start: int
    end: int
    layers: int
    next_address: tuple[str, int] | None
    slots: int
    cells_per_slot: int
    dtype: str
    next_delay_ms: float = 0.0
    return_delay_ms: float = 0.0
    trees: bool = False
    mtp_head: str = ""


class Hello(msgspec.Struct, frozen=True):
    """First frame on every connection; encoded as a map, so that other versions can read it.

    role: "coordinator" or "upstream". ring: identity of the ring that is being formed. digest: of the model.
    stage: the sender's index on an upstream link (-1: the coordinator itself).
    """

    protocol: int
    version: str
    role: str
    ring: str
    digest: str
    stage: int = -1
    assignment: Assignment | None = None


class Greeting(msgspec.Struct, frozen=True):
    """The part of a Hello that every version can read, whatever the rest of it means."""

    protocol: int
    version: str
    digest: str


class Refuse(msgspec.Struct, frozen=True):
    """Why a Hello is refused, with what the refusing side is; encoded as a map."""

    reason: str
    protocol: int
    version: str
    digest: str


class Challenge(msgspec.Struct, frozen=True):
    """A random number that the other end's proof must name; token: the sender has one. Encoded as a map."""

    nonce: bytes
    token: bool = False


class Proof(msgspec.Struct, frozen=True):
    """What `handshake.proof_of` makes; the accepting end adds a random number of its own. Encoded as a map."""

    nonce: bytes
    proof: bytes
    token: bool = False


class Progress(msgspec.Struct, frozen=True):
    """What a stage is doing before it is ready."""

    text: str


class Ready(msgspec.Struct, frozen=True):
    """A stage holds its layers, its link to the next stage is open, and it takes iterations."""

    slots: int
    cells_per_slot: int
    max_rows: int
    exact_rows: int
    pid: int
    memory_bytes: int
    device: str = "cpu"


class Welcome(msgspec.Struct, frozen=True):
    """An upstream link is accepted."""

    stage: int


class Ping(msgspec.Struct, frozen=True, array_like=True):
    """Answered at once by a Pong with the same number."""

    number: int


class Passed(msgspec.Struct, frozen=True, array_like=True):
    """The first stage has passed on this many iterations since the ring was formed: it can take the next one."""

    count: int


class Failed(msgspec.Struct, frozen=True):
    """A ring cannot go on; the connection closes after this. stage: at fault, the sender or a neighbour it lost."""

    stage: int
    reason: str


class IterationHeader(msgspec.Struct, frozen=True, array_like=True):
    """Header of an iteration on its way from stage to stage.

    failures: spans that earlier stages failed. timings: appended by each stage. rows, width, dtype: of the payload.
    """

    iteration: Iteration
    rows: int
    width: int
    dtype: str
    failures: tuple[SpanFailure, ...] = ()
    timings: tuple[StageTiming, ...] = ()


Message = Challenge | Proof | Hello | Refuse | Progress | Ready | Welcome | Ping | Passed | Failed | IterationResult
_M = TypeVar("_M")

_KINDS: dict[type, Kind] = {
    Hello: Kind.HELLO,
    Refuse: Kind.REFUSE,
    Progress: Kind.PROGRESS,
    Ready: Kind.READY,
    Welcome: Kind.WELCOME,
    Ping: Kind.PING,
    Passed: Kind.PASSED,
    Failed: Kind.FAILED,
    IterationResult: Kind.RESULT,
    Challenge: Kind.CHALLENGE,
    Proof: Kind.PROOF,
}
_encoder = msgspec.msgpack.Encoder()
_decoders: dict[type, msgspec.msgpack.Decoder[object]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (*_KINDS, Greeting, IterationHeader)
}


def encode(message: Message, kind: Kind | None = None) -> Frame:
    """A frame without payload that carries the message."""
    return Frame(kind or _KINDS[type(message)], _encoder.encode(message))


def decode(frame: Frame, expected: type[_M]) -> _M:
    """The message in a frame's header.

    Raises ProtocolError when the header is not that message.
    """
    try:
        message = _decoders[expected].decode(frame.header)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, ValueError) as error:
        raise ProtocolError(f"the {frame.kind.name} frame does not hold {expected.__name__}: {error}") from None
    assert isinstance(message, expected)
    return message


def encode_iteration(
    iteration: Iteration,
    activations: Activations,
    dtype: str,
    failures: tuple[SpanFailure, ...] = (),
    timings: tuple[StageTiming, ...] = (),
) -> Frame:
    """An iteration with its activations, (rows, width) float32, converted to `dtype` for the wire.

    Values too large for the type become infinite; the next stage fails the span that they belong to.
    """
    rows, width = activations.shape
    header = IterationHeader(iteration, rows, width, dtype, failures, timings)
    if activations.dtype == DTYPES[dtype]:
        payload = np.ascontiguousarray(activations)
    else:
        with np.errstate(over="ignore"):
            payload = np.ascontiguousarray(activations, dtype=DTYPES[dtype])
    return Frame(Kind.ITERATION, _encoder.encode(header), payload.reshape(-1).view(np.uint8).data)


def decode_iteration(frame: Frame, width: int) -> tuple[IterationHeader, Activations]:
    """Header and activations, (rows, width) float32, of an iteration frame.

    Raises ProtocolError when counts disagree with each other, with the payload or with the model's width.
    """
    header = decode(frame, IterationHeader)
    if (
        len(header.iteration.spans) > MAX_SPANS
        or len(header.failures) > MAX_SPANS
        or len(header.timings) > MAX_SPANS
    ):
        raise ProtocolError(f"iteration {header.iteration.id} has more than {MAX_SPANS} spans")
    if not 0 <= header.rows <= MAX_ROWS or header.width != width or header.rows != header.iteration.rows:
        raise ProtocolError(
            f"iteration {header.iteration.id} announces {header.rows} rows of width {header.width} "
            f"for {header.iteration.rows} tokens; this model's width is {width}"
        )
    dtype = DTYPES.get(header.dtype)
    if dtype is None:
        raise ProtocolError(f"unknown activation type {header.dtype!r}, expected one of {', '.join(DTYPES)}")
    if len(frame.payload) != header.rows * width * dtype.itemsize:
        raise ProtocolError(
            f"iteration {header.iteration.id} carries {len(frame.payload)} bytes of activations, "
            f"{header.rows * width * dtype.itemsize} were expected"
        )
    activations = np.frombuffer(frame.payload, dtype).reshape(header.rows, width).astype(np.float32, copy=False)
    return header, activations
