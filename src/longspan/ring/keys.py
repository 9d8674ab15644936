"""A small certificate authority for one ring, and the certificates of its nodes.

    DIR/authority.pem     the authority's certificate; every node has a copy
    DIR/authority.key     the authority's private key; needed only to add nodes. Keep it off the nodes
    DIR/NAME/             what one node needs: authority.pem, node.pem, node.key

Elliptic curve P-256: every TLS library knows it, and a handshake with it takes well under a millisecond of compute.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from longspan.errors import UsageError
from longspan.ring.identity import NAME, ROLES, Identity, Role, fingerprint_of, uri_of

AUTHORITY_DAYS = 3650
NODE_DAYS = 365
TOKEN_BYTES = 32

AUTHORITY_CERTIFICATE = "authority.pem"
AUTHORITY_KEY = "authority.key"
NODE_CERTIFICATE = "node.pem"
NODE_KEY = "node.key"

_SKEW = datetime.timedelta(hours=1)
"""Certificates are valid from so long ago: clocks of machines differ."""


@dataclasses.dataclass(frozen=True)
class NodeFiles:
    """The files of one node, as TLS takes them, and what its certificate says. expires: in UTC."""

    certificate: Path
    key: Path
    authority: Path
    identity: Identity
    expires: datetime.datetime
    der: bytes = dataclasses.field(repr=False)


def create_authority(directory: Path, days: float = AUTHORITY_DAYS) -> None:
    """Make an authority in a directory. Raises UsageError when there is one already."""
    if (directory / AUTHORITY_KEY).exists() or (directory / AUTHORITY_CERTIFICATE).exists():
        raise UsageError(
            f"{directory} holds an authority already. `longspan keys add {directory} NAME` makes another node's "
            "keys; to begin anew, choose another directory."
        )
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Longspan ring {secrets.token_hex(4)}")])
    usage = _key_usage(digital_signature=False, key_cert_sign=True)
    public = key.public_key()
    certificate = (
        _builder(name, name, public, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )
    _make_directory(directory)
    _write_secret(directory / AUTHORITY_KEY, _pem_of(key))
    (directory / AUTHORITY_CERTIFICATE).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def create_node(directory: Path, name: str, role: Role, days: float = NODE_DAYS) -> NodeFiles:
    """Make keys and a certificate of a node, signed by the authority of the directory.

    A node that exists gets new ones. Raises UsageError.
    """
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot name a node: letters, digits, dots, - and _ only, at most 63 of them")
    if role not in ROLES:
        raise UsageError(f"{role!r} is no role of a node: expected {' or '.join(ROLES)}")
    authority = _certificate(directory / AUTHORITY_CERTIFICATE)
    signer = _private_key(directory / AUTHORITY_KEY)
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        _builder(subject, authority.subject, public, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True, key_cert_sign=False), critical=True)
        # Both: a stage is called by the one before it, and calls the one after it.
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri_of(role, name))]), critical=False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    folder = directory / name
    _make_directory(folder)
    _write_secret(folder / NODE_KEY, _pem_of(key))
    (folder / NODE_CERTIFICATE).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / AUTHORITY_CERTIFICATE).write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    return read_node(folder)


def read_node(folder: Path) -> NodeFiles:
    """What a node's directory holds. Raises UsageError that says which file is missing or unsafe."""
    paths = folder / NODE_CERTIFICATE, folder / NODE_KEY, folder / AUTHORITY_CERTIFICATE
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise UsageError(
            f"{folder} is not the directory of a node's keys: {' and '.join(missing)} missing. "
            "`longspan keys init` makes one directory for each node."
        )
    check_secret(paths[1])
    certificate = _certificate(paths[0])
    return NodeFiles(
        *paths,
        _identity(certificate, paths[0]),
        certificate.not_valid_after_utc,
        certificate.public_bytes(serialization.Encoding.DER),
    )


def nodes_of(directory: Path) -> list[NodeFiles]:
    """Every node of an authority's directory, by name. Raises UsageError."""
    if not (directory / AUTHORITY_CERTIFICATE).is_file():
        raise UsageError(f"{directory} holds no authority; `longspan keys init {directory}` makes one")
    folders: Iterable[Path] = sorted(path.parent for path in directory.glob(f"*/{NODE_CERTIFICATE}"))
    return [read_node(folder) for folder in folders]


def create_token(path: Path) -> None:
    """Write a new shared token, 256 random bits, that only this user can read. Raises UsageError."""
    if path.exists():
        raise UsageError(f"{path} exists already; remove it first if no ring uses it any more")
    _make_directory(path.parent)
    _write_secret(path, secrets.token_urlsafe(TOKEN_BYTES).encode() + b"\n")


def check_secret(path: Path) -> None:
    """Raises UsageError when every user of the machine can read a secret."""
    if path.stat().st_mode & 0o007:
        raise UsageError(f"every user of this machine can read {path}. Take that away: chmod 600 {path}")


def ephemeral_certificate() -> tuple[bytes, bytes, bytes]:
    """A certificate that nobody vouches for, valid for ten years: PEM, PEM of its key, DER.

    For links whose ends know each other by a shared token, which is bound to it.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Longspan")])
    certificate = _builder(name, name, key.public_key(), AUTHORITY_DAYS).sign(key, hashes.SHA256())
    encodings = serialization.Encoding
    return certificate.public_bytes(encodings.PEM), _pem_of(key), certificate.public_bytes(encodings.DER)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    end = now + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, end) - _SKEW)
        .not_valid_after(end)
    )


def _key_usage(*, digital_signature: bool, key_cert_sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=key_cert_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _identity(certificate: x509.Certificate, path: Path) -> Identity:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    der = certificate.public_bytes(serialization.Encoding.DER)
    for uri in names.get_values_for_type(x509.UniformResourceIdentifier):
        for role in ROLES:
            name = uri.removeprefix(uri_of(role, ""))
            if name != uri and NAME.fullmatch(name):
                return Identity(role, name, fingerprint_of(der))
    raise UsageError(f"{path} is not the certificate of a node of a ring. `longspan keys init` makes one.")


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}. `longspan keys init` makes it.") from None
    except ValueError as error:
        raise UsageError(f"{path} is no certificate in PEM form: {error}") from None


def _private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        check_secret(path)
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise UsageError(
            f"cannot read the authority's key {path}: {error.strerror}. Only the machine on which the authority "
            "was made can add nodes."
        ) from None
    except (ValueError, TypeError):
        raise UsageError(f"{path} is no private key in PEM form without a password") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UsageError(f"{path} is not a key that `longspan keys init` has made")
    return key


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the directory {directory}: {error.strerror}") from None


def _write_secret(path: Path, content: bytes) -> None:
    """Never readable for others, not even for a moment."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
