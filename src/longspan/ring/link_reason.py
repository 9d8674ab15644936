"""Why a link was lost, in words for a person."""

from __future__ import annotations

import ssl

_REASONS = {
    "WRONG_VERSION_NUMBER": "the peer does not speak TLS: start it with --keys or --token-file, too",
    "HTTP_REQUEST": "the peer speaks HTTP, not TLS: the address is not that of a stage",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer has no certificate: start it with --keys",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the peer asks for a certificate: start this side with --keys",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer refuses our certificate: it is signed by another authority than its own",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the peer refuses our certificate: it has expired; renew it with "
    "`longspan keys add`",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the peer refuses our certificate",
    "TLSV1_ALERT_DECRYPT_ERROR": "the peer refuses our certificate: its signature is wrong",
    "NO_SHARED_CIPHER": "both sides have no cipher in common",
}


def reason_in_words(error: BaseException) -> str:
    """Why a link failed, for a person."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == 10:  # X509_V_ERR_CERT_HAS_EXPIRED
            return "the peer's certificate has expired; renew it with `longspan keys add`"
        if error.verify_code == 9:  # X509_V_ERR_CERT_NOT_YET_VALID
            return "the peer's certificate is not valid yet; are the clocks of both machines right?"
        return f"the peer's certificate is not of our authority ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "").upper().replace(" ", "_")
        return _REASONS.get(reason) or f"TLS failed: {error.reason or error}"
    if isinstance(error, ConnectionError) and not error.strerror:
        return "the peer closed the connection in the middle of the TLS handshake"
    return str(error) or type(error).__name__
