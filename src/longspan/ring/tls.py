"""TLS of the links."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path

from longspan.errors import UsageError
from longspan.ring.keys import NodeFiles, ephemeral_certificate

Contexts = tuple[ssl.SSLContext, ssl.SSLContext]
"""For links that were accepted, and for links that were opened."""


def certificate_contexts(files: NodeFiles) -> Contexts:
    """Both ends show certificates of the same authority. Raises UsageError when the files do not fit together."""
    contexts = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in contexts:
        # Nodes are known by what their authority says about them: addresses change, names of hosts say nothing.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(files.authority)
            context.load_cert_chain(files.certificate, files.key)
        except (ssl.SSLError, OSError) as error:
            raise UsageError(
                f"the keys in {files.certificate.parent} cannot be used: {error}. Make new ones with "
                "`longspan keys add`."
            ) from None
    return _strict(contexts)


def token_contexts() -> tuple[Contexts, bytes]:
    """TLS between ends that have no certificates; the server's own certificate (DER), to bind the token to."""
    contexts = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    certificate, key, der = ephemeral_certificate()
    # The library takes certificates only from files.
    with tempfile.TemporaryDirectory(prefix="longspan-") as folder:
        path = Path(folder) / "certificate.pem"
        path.touch(mode=0o600)
        path.write_bytes(certificate + key)
        contexts[0].load_cert_chain(path)
    contexts[1].check_hostname = False
    contexts[1].verify_mode = ssl.CERT_NONE
    return _strict(contexts), der


def _strict(contexts: Contexts) -> Contexts:
    for context in contexts:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    # No resumption: a ring forms seldom, and every link shall show its certificate.
    contexts[0].num_tickets = 0
    return contexts
