"""The broker's settings for TLS and SASL. Pure.

Each can be set for one listener, as `listener.name.<listener>.<setting>`, and those of SASL for one mechanism of it, as
`listener.name.<listener>.<mechanism>.<setting>`; `listener_security.py` finds the ones that apply.
"""

from dataclasses import dataclass

from ottla.config import BaseConfig, setting
from ottla.types import INT32_MAX


@dataclass(init=False, repr=False, eq=False)
class SecurityConfig(BaseConfig):
    """How listeners are secured, and how this broker connects to the others."""

    security_inter_broker_protocol: str | None = setting(
        "security.inter.broker.protocol",
        None,
        "The protocol between brokers: the first listener with it is used, unless inter.broker.listener.name is set.",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )

    # TLS

    ssl_keystore_type: str | None = setting(
        "ssl.keystore.type",
        None,
        "PEM or PKCS12 (JKS means the same as PKCS12); not set: detected from the file.",
        read_only=False,
    )
    ssl_keystore_location: str | None = setting(
        "ssl.keystore.location",
        None,
        "The file with the private key and the certificate chain. A changed file is used for new connections.",
        read_only=False,
    )
    ssl_keystore_password: str | None = setting(
        "ssl.keystore.password", None, "The password of a PKCS#12 file.", kind="password", read_only=False
    )
    ssl_keystore_key: str | None = setting(
        "ssl.keystore.key", None, "The private key in PEM, instead of a file.", kind="password", read_only=False
    )
    ssl_keystore_certificate_chain: str | None = setting(
        "ssl.keystore.certificate.chain",
        None,
        "The certificate chain in PEM, instead of a file.",
        kind="password",
        read_only=False,
    )
    ssl_key_password: str | None = setting(
        "ssl.key.password", None, "The password of the private key in PEM.", kind="password", read_only=False
    )
    ssl_truststore_type: str | None = setting(
        "ssl.truststore.type",
        None,
        "PEM or PKCS12 (JKS means the same as PKCS12); not set: detected from the file.",
        read_only=False,
    )
    ssl_truststore_location: str | None = setting(
        "ssl.truststore.location",
        None,
        "The file with the certificates of trusted authorities. A changed file is used for new connections.",
        read_only=False,
    )
    ssl_truststore_password: str | None = setting(
        "ssl.truststore.password", None, "The password of a PKCS#12 file.", kind="password", read_only=False
    )
    ssl_truststore_certificates: str | None = setting(
        "ssl.truststore.certificates",
        None,
        "The certificates of trusted authorities in PEM, instead of a file.",
        kind="password",
        read_only=False,
    )
    ssl_enabled_protocols: tuple[str, ...] = setting(
        "ssl.enabled.protocols",
        ("TLSv1.2", "TLSv1.3"),
        "The versions of TLS.",
        choices=("TLSv1.2", "TLSv1.3"),
        read_only=False,
    )
    ssl_protocol: str = setting("ssl.protocol", "TLSv1.3", "The highest version of TLS.", read_only=False)
    ssl_cipher_suites: tuple[str, ...] = setting(
        "ssl.cipher.suites",
        (),
        "The cipher suites, by their standard names or OpenSSL's; empty: OpenSSL's defaults. If none of them is for "
        "TLS 1.3, that version is not used.",
        read_only=False,
    )
    ssl_client_auth: str = setting(
        "ssl.client.auth",
        "none",
        "Whether clients need a certificate. With required or requested, its owner is the user on SSL listeners.",
        choices=("required", "requested", "none"),
        read_only=False,
    )
    ssl_endpoint_identification_algorithm: str = setting(
        "ssl.endpoint.identification.algorithm",
        "https",
        "Whether this broker verifies the host names of other brokers (https); empty: it does not.",
        read_only=False,
    )
    ssl_principal_mapping_rules: str = setting(
        "ssl.principal.mapping.rules",
        "DEFAULT",
        "How the owner of a client certificate becomes the name of a user: RULE:pattern/replacement/[LU], separated "
        "by commas; DEFAULT is the whole name.",
    )

    # SASL

    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        "sasl.enabled.mechanisms",
        ("GSSAPI",),
        "The mechanisms of listeners with SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER. GSSAPI is not "
        "supported.",
    )
    sasl_jaas_config: str | None = setting(
        "sasl.jaas.config",
        None,
        "The login module of a mechanism. Set it as listener.name.<listener>.<mechanism>.sasl.jaas.config.",
        kind="password",
    )
    sasl_mechanism_inter_broker_protocol: str = setting(
        "sasl.mechanism.inter.broker.protocol", "GSSAPI", "The mechanism with which brokers log in to each other."
    )
    sasl_server_max_receive_size: int = setting(
        "sasl.server.max.receive.size",
        524_288,
        "The largest request of a client that has not authenticated yet.",
        at_least=1,
        at_most=INT32_MAX,
    )
    connections_max_reauth_ms: int = setting(
        "connections.max.reauth.ms",
        0,
        "A client with SASL must reauthenticate after this time (KIP-368); 0: never.",
        kind="long",
    )
    connection_failed_authentication_delay_ms: int = setting(
        "connection.failed.authentication.delay.ms",
        100,
        "How long the answer to a failed authentication is delayed.",
        at_least=0,
    )
    sasl_oauthbearer_jwks_endpoint_url: str | None = setting(
        "sasl.oauthbearer.jwks.endpoint.url",
        None,
        "Where the keys of the identity provider are: an https:// or file:// URL of a JWKS document.",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = setting(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms", 3_600_000, "How often the keys are refreshed.", kind="long"
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = setting(
        "sasl.oauthbearer.expected.audience", (), "A token must be for one of these audiences."
    )
    sasl_oauthbearer_expected_issuer: str | None = setting(
        "sasl.oauthbearer.expected.issuer", None, "A token must be from this issuer."
    )
    sasl_oauthbearer_sub_claim_name: str = setting(
        "sasl.oauthbearer.sub.claim.name", "sub", "The claim with the name of the user."
    )
    sasl_oauthbearer_scope_claim_name: str = setting(
        "sasl.oauthbearer.scope.claim.name", "scope", "The claim with the scopes of a token."
    )
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        "sasl.oauthbearer.clock.skew.seconds",
        30,
        "How much the clocks of broker and identity provider may differ.",
        at_least=0,
    )

    # Newcomers

    max_unauthenticated_connections: int = setting(
        "ottla.max.unauthenticated.connections",
        1000,
        "The most connections that have not authenticated yet, on listeners with TLS or SASL. Beyond it, the oldest "
        "one of the address with the most is closed.",
        at_least=1,
    )
    authentication_timeout_ms: int = setting(
        "ottla.authentication.timeout.ms",
        30_000,
        "How long a connection on a listener with TLS or SASL may take to authenticate.",
        at_least=100,
    )
