"""Who is at the other end of a link."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

from longspan.errors import UsageError

Role = Literal["coordinator", "stage"]
"""A certificate is for one of these: the key of a stage gives nobody the right to command other stages."""

ROLES: tuple[Role, ...] = get_args(Role)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""Names of nodes; they become names of directories, too."""

_SCHEME = "longspan://"
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """The other end. role, name: from its certificate, None where no certificate says so (links that are open, or
    only have a shared token). fingerprint: SHA-256 of its certificate, in hexadecimal; empty without one."""

    role: Role | None = None
    name: str | None = None
    fingerprint: str = ""

    def may_be(self, role: Role) -> bool:
        """Whether it may act as that. Whoever has no role was let in as a peer like any other."""
        return self.role is None or self.role == role

    def __str__(self) -> str:
        return f"{self.role} {self.name}" if self.role else "a peer without a certificate"


NOBODY = Identity()
"""The other end of a link on which nobody has to say who they are."""


def uri_of(role: Role, name: str) -> str:
    """What a certificate says about its owner, as a subject alternative name."""
    return f"{_SCHEME}{role}/{name}"


def fingerprint_of(certificate: bytes) -> str:
    """SHA-256 of a certificate in DER form, in hexadecimal."""
    return hashlib.sha256(certificate).hexdigest()


def parse_fingerprint(text: str) -> str:
    """A fingerprint as people write it: colons, capitals and a leading `sha256:` are allowed. Raises UsageError."""
    plain = text.strip().lower().removeprefix("sha256:").replace(":", "")
    if not _FINGERPRINT.fullmatch(plain):
        raise UsageError(
            f"{text!r} is not the fingerprint of a certificate: expected 64 hexadecimal digits (SHA-256), "
            "as `longspan keys show` prints them"
        )
    return plain


def identity_of(certificate: Mapping[str, Any], der: bytes) -> Identity | None:
    """The owner of a checked certificate, in the form of `ssl.SSLSocket.getpeercert`; None when it is not ours."""
    for kind, value in certificate.get("subjectAltName", ()):
        if kind == "URI" and value.startswith(_SCHEME):
            role, _, name = value.removeprefix(_SCHEME).partition("/")
            if role in ROLES and NAME.fullmatch(name):
                return Identity(role, name, fingerprint_of(der))
    return None
