"""The security protocol of a listener or a client: whether there is TLS, and whether there is SASL. Pure."""

import enum


class SecurityProtocol(enum.Enum):
    """Kafka's four values of `security.protocol` and of `listener.security.protocol.map`."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def uses_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)
