"""The first words on a link whose ends have to say who they are.

Inside TLS, before anything else:

    client → server   CHALLENGE   a fresh random number; whether it has a token
    server → client   PROOF       another one, and its proof; or REFUSE, with the reason
    client → server   PROOF       its own proof

A proof is the HMAC-SHA256, keyed with the shared token (or with nothing, when only certificates count), of who
proves, both random numbers and both certificates. A recorded handshake proves nothing later, since the other end's
number is new each time; and who sits in the middle with a certificate of his own cannot pass a proof on, since it
names the certificates that each end sees. What is compared is compared in constant time.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from typing import TYPE_CHECKING, Literal

from longspan.errors import ProtocolError, RingError
from longspan.ring.frame import Frame, Kind
from longspan.ring.messages import Challenge, Proof, Refuse, decode, encode

if TYPE_CHECKING:
    from longspan.ring.tcp import TcpLink

NONCE_BYTES = 32
_LABEL = b"longspan handshake 1"

Side = Literal["client", "server"]


class NotAdmittedError(RingError):
    """The other end has not shown that it belongs here; it is told why, and nothing else."""


def proof_of(side: Side, token: bytes, client: bytes, server: bytes, client_der: bytes, server_der: bytes) -> bytes:
    """What `side` proves with: 32 bytes. client, server: the random numbers; *_der: certificates, or empty."""
    parts = (_LABEL, side.encode(), client, server, client_der, server_der)
    # Each with its length, so that no two lists of parts give the same bytes.
    message = b"".join(struct.pack(">I", len(part)) + part for part in parts)
    return hmac.digest(token, message, "sha256")


async def prove_as_client(link: TcpLink, token: bytes, own_der: bytes, server_der: bytes) -> None:
    """The opening end's part. Raises RingError when the other end refuses, or cannot prove itself."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    await link.send(encode(Challenge(nonce, bool(token))))
    frame = await link.receive()
    if frame.kind is Kind.REFUSE:
        raise RingError(f"refused: {decode(frame, Refuse).reason}")
    if frame.kind is not Kind.PROOF:
        raise ProtocolError(f"expected a PROOF frame, got {frame.kind.name}")
    answer = decode(frame, Proof)
    _check_nonce(answer.nonce)
    if token and not answer.token:
        raise RingError("this side was started with a token, the other one without: start both with --token-file")
    expected = proof_of("server", token, nonce, answer.nonce, own_der, server_der)
    if not hmac.compare_digest(expected, answer.proof):
        raise RingError("the other side has another token than this one: give both the same file")
    await link.send(encode(Proof(b"", proof_of("client", token, nonce, answer.nonce, own_der, server_der))))


async def prove_as_server(link: TcpLink, token: bytes, client_der: bytes, own_der: bytes) -> None:
    """The accepting end's part. Raises NotAdmittedError when the other end cannot prove itself."""
    challenge = decode(await _expect(link, Kind.CHALLENGE), Challenge)
    _check_nonce(challenge.nonce)
    if token and not challenge.token:
        raise NotAdmittedError(
            "no token: this side asks for the ring's token; start the other one with --token-file"
        )
    nonce = secrets.token_bytes(NONCE_BYTES)
    own = proof_of("server", token, challenge.nonce, nonce, client_der, own_der)
    await link.send(encode(Proof(nonce, own, bool(token))))
    answer = decode(await _expect(link, Kind.PROOF), Proof)
    expected = proof_of("client", token, challenge.nonce, nonce, client_der, own_der)
    if not hmac.compare_digest(expected, answer.proof):
        raise NotAdmittedError("wrong token, or an old handshake sent again")


async def _expect(link: TcpLink, kind: Kind) -> Frame:
    frame = await link.receive()
    if frame.kind is not kind:
        raise NotAdmittedError(f"expected a {kind.name} frame, got {frame.kind.name}")
    return frame


def _check_nonce(nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES:
        raise NotAdmittedError(f"a random number of {len(nonce)} bytes, {NONCE_BYTES} were expected")
