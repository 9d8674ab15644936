"""How one end of a link shows who it is, and what it asks of the other end."""

from __future__ import annotations

import dataclasses
import datetime
import ipaddress
import logging
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from longspan.errors import ProtocolError, RingError, UsageError
from longspan.ring.handshake import NotAdmittedError, prove_as_client, prove_as_server
from longspan.ring.identity import NOBODY, Identity, Role, fingerprint_of, identity_of, parse_fingerprint

if TYPE_CHECKING:
    from longspan.ring.tcp import TcpLink

MIN_TOKEN_BYTES = 16
MAX_TOKEN_BYTES = 4096
HANDSHAKE_SECONDS = 10.0
RENEW_DAYS = 30
"""A certificate that expires sooner is worth a line at every start."""

log = logging.getLogger(__name__)


class SecurityOptions(msgspec.Struct, frozen=True):
    """What a person asks for. No secret stands here, only where they are.

    keys: directory of this node's certificate (see `keys`). token_file: of the ring's shared token. pins:
    fingerprints of the only certificates that are let in. insecure: links that others can reach may be open.
    """

    keys: str | None = None
    token_file: str | None = None
    pins: tuple[str, ...] = ()
    insecure: bool = False


@dataclasses.dataclass(frozen=True)
class Security:
    """One node's side of every link, as `load_security` makes it. Without contexts links are open.

    accepting, opening: TLS of the links that others open, and of those that this node opens. token: empty for none.
    own_der: this node's certificate on links that it accepts; client_der: on those that it opens, empty for none.
    expires: when that is no longer valid, in UTC.
    """

    accepting: ssl.SSLContext | None = None
    opening: ssl.SSLContext | None = None
    token: bytes = dataclasses.field(default=b"", repr=False)
    own_der: bytes = dataclasses.field(default=b"", repr=False)
    client_der: bytes = dataclasses.field(default=b"", repr=False)
    pins: frozenset[str] = frozenset()
    expires: datetime.datetime | None = None

    @property
    def active(self) -> bool:
        """Whether links are encrypted, and their ends have to say who they are."""
        return self.accepting is not None

    async def accept(self, link: TcpLink) -> Identity:
        """Let the end that has opened this link in. Raises RingError; NotAdmittedError is to be told to the peer.

        Nothing is allocated for a peer before that but what a frame of a handshake takes.
        """
        if self.accepting is None:
            return NOBODY
        await link.secure(self.accepting, server_side=True, seconds=HANDSHAKE_SECONDS)
        identity, der = self._peer(link)
        await prove_as_server(link, self.token, der, self.own_der)
        return identity

    async def approach(self, link: TcpLink, role: Role) -> Identity:
        """Show who we are on a link that we opened, and see that the other end is a `role`. Raises RingError."""
        if self.opening is None:
            return NOBODY
        await link.secure(self.opening, server_side=False, seconds=HANDSHAKE_SECONDS)
        identity, der = self._peer(link)
        try:
            await prove_as_client(link, self.token, self.client_der, der)
        except ProtocolError:
            raise
        except RingError as error:
            if link.statistics.frames_received:
                raise
            raise RingError(f"{error} {self._unwelcome()}") from None
        if not identity.may_be(role):
            raise ProtocolError(f"the other end's certificate is of {identity}, a {role} was expected there")
        return identity

    def _unwelcome(self) -> str:
        """Why an end that said nothing may have hung up."""
        if self.expires is not None and self.expires <= datetime.datetime.now(datetime.UTC):
            return "because our certificate has expired; renew it with `longspan keys add`"
        return (
            "before it said a word: it does not take our certificate, or asks for one (--keys); its log says which"
        )

    def _peer(self, link: TcpLink) -> tuple[Identity, bytes]:
        certificate, der = link.peer_certificate()
        identity = identity_of(certificate, der) if certificate else Identity(fingerprint=fingerprint_of(der))
        if not self.client_der:
            return Identity(), der
        if identity is None:
            raise NotAdmittedError("the certificate does not say which node of a ring it is for")
        if self.pins and identity.fingerprint not in self.pins:
            raise NotAdmittedError(
                f"the certificate of {identity} ({identity.fingerprint[:16]}…) is none of those that --pin allows"
            )
        return identity, der


OPEN = Security()
"""Links that anybody who reaches them may use: on one machine, or when a person has asked for it."""


def load_security(options: SecurityOptions) -> Security:
    """Read keys and token. Raises UsageError that says what cannot be used, never with a secret in it."""
    token = _read_token(Path(options.token_file)) if options.token_file is not None else b""
    pins = frozenset(parse_fingerprint(pin) for pin in options.pins)
    if options.keys is None:
        if pins:
            raise UsageError("--pin names certificates, and only --keys asks for any; give both")
        return _with_token(token) if token else OPEN
    # The library for certificates is only loaded where somebody uses them.
    from longspan.ring.keys import read_node
    from longspan.ring.tls import certificate_contexts

    files = read_node(Path(options.keys))
    left = files.expires - datetime.datetime.now(datetime.UTC)
    if left.total_seconds() <= 0:
        log.warning("the certificate in %s has expired: no peer will take it", options.keys)
    elif left.days < RENEW_DAYS:
        log.warning("the certificate in %s expires in %d days; renew it in time", options.keys, left.days)
    accepting, opening = certificate_contexts(files)
    return Security(accepting, opening, token, files.der, files.der, pins, files.expires)


def check_exposure(hosts: Iterable[str], security: Security, *, insecure: bool, what: str) -> None:
    """Refuse links between machines that anybody may read and use, unless a person insists.

    what: "listen on" or "call". Raises UsageError.
    """
    far = [host for host in hosts if not is_loopback(host)]
    if not far or security.active:
        return
    if not insecure:
        raise UsageError(
            f"will not {what} {far[0]}, an address outside of this machine, without knowing who is at the other "
            "end. Give --keys (certificates, made by `longspan keys init`) or --token-file (a shared secret, made "
            "by `longspan keys token`), or --insecure when everybody in that network may use this ring and read it."
        )
    log.warning(
        "INSECURE: links to %s are neither encrypted nor closed. Everybody in that network can use this ring, read "
        "what people ask and what they get, and change it. Use --keys or --token-file instead of --insecure.",
        ", ".join(far),
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address. A name counts as outside, whatever it resolves to."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _with_token(token: bytes) -> Security:
    from longspan.ring.tls import token_contexts

    (accepting, opening), der = token_contexts()
    return Security(accepting, opening, token, der)


def _read_token(path: Path) -> bytes:
    from longspan.ring.keys import check_secret

    try:
        check_secret(path)
        token = path.read_bytes().strip()
    except OSError as error:
        raise UsageError(
            f"cannot read the token in {path}: {error.strerror}. `longspan keys token` makes it."
        ) from None
    if not MIN_TOKEN_BYTES <= len(token) <= MAX_TOKEN_BYTES:
        raise UsageError(
            f"the token in {path} has {len(token)} bytes; expected {MIN_TOKEN_BYTES} to {MAX_TOKEN_BYTES}, so that "
            "nobody can guess it. `longspan keys token` makes a good one."
        )
    return token
