"""Explains TLS errors to the user: address, cause and fix. Pure.

OpenSSL's messages name neither the address nor the setting to change, and two event loops report them at different
moments: some come from connecting, some when the connection is lost.
"""

import ssl

from ottla.errors import AuthenticationError, ErrorCode, KafkaError
from ottla.types import Endpoint

X509_NOT_YET_VALID, X509_EXPIRED = 9, 10
X509_UNTRUSTED = (2, 18, 19, 20, 21)
X509_WRONG_NAME = (62, 64)

NOT_TLS = (
    "WRONG_VERSION_NUMBER",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
    "HTTP_REQUEST",
    "HTTPS_PROXY_REQUEST",
)
"""OpenSSL's errors for bytes that are not TLS; the name depends on its version and on the bytes."""

TRUST_HINT = (
    "Set ssl.truststore.location with ssl.truststore.type=PEM (librdkafka: ssl.ca.location) to the certificate of the "
    "CA that signed it."
)
NO_TLS_HINT = "Set security.protocol to PLAINTEXT or SASL_PLAINTEXT, or connect to the port of a listener with TLS."
TLS_HINT = "Set security.protocol to SSL or SASL_SSL, or connect to the port of a listener without TLS."
CLIENT_CERTIFICATE_HINT = (
    "Set ssl.keystore.location with ssl.keystore.type=PEM (librdkafka: ssl.certificate.location and ssl.key.location) "
    "to a certificate that the broker trusts."
)

# The broker's alerts, as OpenSSL names them.
_ALERTS = {
    "CERTIFICATE_REQUIRED": ("requires a client certificate, but this client sent none", CLIENT_CERTIFICATE_HINT),
    # Java's answer to a missing certificate, and to one that it cannot read.
    "BAD_CERTIFICATE": ("requires a client certificate, but received none that it accepts", CLIENT_CERTIFICATE_HINT),
    "CERTIFICATE_UNKNOWN": ("rejected the client's certificate", CLIENT_CERTIFICATE_HINT),
    "UNSUPPORTED_CERTIFICATE": ("does not accept this kind of client certificate", CLIENT_CERTIFICATE_HINT),
    "UNKNOWN_CA": (
        "does not trust the CA of the client's certificate",
        "Use a certificate of a CA in the broker's truststore, or add the CA to it.",
    ),
    "CERTIFICATE_EXPIRED": ("rejected the client's certificate: it has expired", "Renew the client's certificate."),
    "CERTIFICATE_REVOKED": ("rejected the client's certificate: it was revoked", "Get a new client certificate."),
    "PROTOCOL_VERSION": (
        "does not accept the TLS versions of this client",
        "Set ssl.enabled.protocols to versions that the broker accepts.",
    ),
    "HANDSHAKE_FAILURE": (
        "found no cipher and key type that both sides accept, or requires a client certificate",
        "Compare ssl.cipher.suites and ssl.enabled.protocols of both sides. " + CLIENT_CERTIFICATE_HINT,
    ),
    "UNRECOGNIZED_NAME": (
        "has no certificate for this host name",
        "Connect by a name that the broker's certificate has.",
    ),
}


def tls_error(detail: str, hint: str) -> AuthenticationError:
    return AuthenticationError(detail, hint, ErrorCode.NETWORK_EXCEPTION)


class DroppedTlsError(KafkaError):
    """The broker ended TLS without a reason. Python's servers do so when they reject a client's certificate.

    The broker may also be stopping, so the error is retriable; `as_final` is for repeated errors.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        detail = f"{endpoint} closed the connection at the end of the TLS handshake, without a reason"
        super().__init__(ErrorCode.NETWORK_EXCEPTION, detail)
        self.hint = f"It probably requires a client certificate, or rejects this one. {CLIENT_CERTIFICATE_HINT}"

    def as_final(self) -> AuthenticationError:
        return tls_error(self.detail, self.hint)


def explain_tls(error: ssl.SSLError, endpoint: Endpoint) -> AuthenticationError:
    """The error for the user."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _explain_certificate(error, endpoint)
    reason = error.reason or ""
    if reason in NOT_TLS:
        return tls_error(f"{endpoint} does not use TLS", NO_TLS_HINT)
    for alert, (cause, hint) in _ALERTS.items():
        if reason.endswith("ALERT_" + alert):
            return tls_error(f"{endpoint} {cause}", hint)
    if reason in ("UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE"):
        return tls_error(
            f"{endpoint} offers only TLS versions that this client does not accept", _ALERTS["PROTOCOL_VERSION"][1]
        )
    cause = reason.replace("_", " ").lower() or str(error)
    return tls_error(f"TLS with {endpoint} failed: {cause}", "Compare the ssl.* settings of the broker and the client.")


def _explain_certificate(error: ssl.SSLCertVerificationError, endpoint: Endpoint) -> AuthenticationError:
    theirs, said = f"the certificate of {endpoint}", error.verify_message.rstrip(".")
    if error.verify_code == X509_EXPIRED:
        return tls_error(f"{theirs} has expired", "Renew the broker's certificate, or check the clock of this machine.")
    if error.verify_code == X509_NOT_YET_VALID:
        return tls_error(f"{theirs} is not valid yet", "Check the clock of this machine and of the one that issued it.")
    if error.verify_code in X509_WRONG_NAME:
        return tls_error(
            f"{theirs} is for another host ({said})",
            "Connect by a name or address that the certificate has, or issue it for this one too. "
            "An empty ssl.endpoint.identification.algorithm turns the check off.",
        )
    if error.verify_code in X509_UNTRUSTED:
        return tls_error(f"{theirs} is not signed by a CA that this client trusts ({said})", TRUST_HINT)
    return tls_error(f"{theirs} was rejected ({said})", TRUST_HINT)
