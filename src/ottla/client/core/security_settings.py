"""The clients' settings of TLS and SASL, under Kafka's names and, where Kafka has none, librdkafka's. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ottla.config import setting, settings_of
from ottla.errors import ConfigError
from ottla.security.protocols import SecurityProtocol
from ottla.security.sasl.client_exchanges import CLIENT_MECHANISMS, OAUTHBEARER
from ottla.security.sasl.jaas import JaasConfig, parse_jaas_config

PROTOCOLS = tuple(protocol.name for protocol in SecurityProtocol)
OBJECTS = ("sasl.oauth.token.provider", "ssl.context")
"""Settings whose values are Python objects, not text."""

TLS_AND_SASL = ("ssl.", "sasl.", "enable.ssl.")
SECURITY = ("security.", *TLS_AND_SASL)
"""How the names of security settings begin."""


@dataclass(frozen=True, kw_only=True)
class SecurityConfig:
    """How the connections of a client are secured."""

    security_protocol: str = setting(
        "security.protocol",
        "PLAINTEXT",
        f"The security protocol of the connections: {', '.join(PROTOCOLS)}.",
        check=lambda text: text.upper() in PROTOCOLS,
        rule=f"String must be one of: {', '.join(PROTOCOLS)}",
    )
    ssl_truststore_location: str | None = setting(
        "ssl.truststore.location",
        None,
        "A file with the certificates of the CAs to trust, in PEM or PKCS#12; those of the system if not set.",
    )
    ssl_truststore_password: str | None = setting(
        "ssl.truststore.password", None, "The password of a trust store in PKCS#12.", kind="password"
    )
    ssl_truststore_type: str | None = setting(
        "ssl.truststore.type", None, "PEM or PKCS12; recognised by the content if not set."
    )
    ssl_truststore_certificates: str | None = setting(
        "ssl.truststore.certificates", None, "The certificates of the CAs to trust, in PEM.", kind="password"
    )
    ssl_keystore_location: str | None = setting(
        "ssl.keystore.location",
        None,
        "A file with the client's private key and certificate chain, in PEM or PKCS#12, if the broker requires one.",
    )
    ssl_keystore_password: str | None = setting(
        "ssl.keystore.password", None, "The password of a key store in PKCS#12.", kind="password"
    )
    ssl_keystore_type: str | None = setting(
        "ssl.keystore.type", None, "PEM or PKCS12; recognised by the content if not set."
    )
    ssl_keystore_key: str | None = setting(
        "ssl.keystore.key", None, "The client's private key, in PEM.", kind="password"
    )
    ssl_keystore_certificate_chain: str | None = setting(
        "ssl.keystore.certificate.chain", None, "The client's certificate chain, in PEM.", kind="password"
    )
    ssl_key_password: str | None = setting(
        "ssl.key.password", None, "The password of the private key, if it is encrypted.", kind="password"
    )
    ssl_key_location: str | None = setting(
        "ssl.key.location", None, "A file with the client's private key only, in PEM (librdkafka)."
    )
    ssl_certificate_location: str | None = setting(
        "ssl.certificate.location", None, "A file with the client's certificate chain only, in PEM (librdkafka)."
    )
    ssl_enabled_protocols: tuple[str, ...] = setting(
        "ssl.enabled.protocols", ("TLSv1.2", "TLSv1.3"), "The versions of TLS that may be used."
    )
    ssl_protocol: str = setting("ssl.protocol", "TLSv1.3", "The highest version of TLS that may be used.")
    ssl_cipher_suites: str | None = setting(
        "ssl.cipher.suites", None, "The cipher suites that may be used, with the names of Java or OpenSSL."
    )
    ssl_endpoint_identification_algorithm: str = setting(
        "ssl.endpoint.identification.algorithm",
        "https",
        "https: the broker's certificate must be for the host name that the client connects to. Empty: not checked.",
    )
    enable_ssl_certificate_verification: bool = setting(
        "enable.ssl.certificate.verification",
        True,
        "Whether the broker's certificate is verified (librdkafka). If not, anyone can impersonate a broker.",
    )
    ssl_context: Any = setting(  # noqa: RUF009 - a field
        "ssl.context", None, "An ssl.SSLContext, instead of all the other ssl settings.", kind="object"
    )
    sasl_mechanism: str = setting(
        "sasl.mechanism",
        "GSSAPI",
        f"How to log in: {', '.join(CLIENT_MECHANISMS)}. Kafka's default, GSSAPI (Kerberos), is not supported.",
    )
    sasl_jaas_config: str | None = setting(
        "sasl.jaas.config",
        None,
        'User and password as Java programs write them: `…ScramLoginModule required username="…" password="…";`.',
        kind="password",
    )
    sasl_username: str | None = setting("sasl.username", None, "The user for PLAIN and SCRAM (librdkafka).")
    sasl_password: str | None = setting(
        "sasl.password", None, "The password for PLAIN and SCRAM (librdkafka).", kind="password"
    )
    sasl_oauth_token_provider: Any = setting(  # noqa: RUF009 - a field
        "sasl.oauth.token.provider",
        None,
        "For OAUTHBEARER: a function, plain or async, that returns a token, or a token and when it expires (seconds "
        "since 1970). An object with a method `token` works too.",
        kind="object",
    )
    sasl_oauthbearer_token_endpoint_url: str | None = setting(
        "sasl.oauthbearer.token.endpoint.url", None, "For OAUTHBEARER: where to get tokens (client credentials grant)."
    )
    sasl_oauthbearer_client_credentials_client_id: str | None = setting(
        "sasl.oauthbearer.client.credentials.client.id", None, "The client id for the token endpoint."
    )
    sasl_oauthbearer_client_credentials_client_secret: str | None = setting(
        "sasl.oauthbearer.client.credentials.client.secret",
        None,
        "The client secret for the token endpoint.",
        kind="password",
    )
    sasl_oauthbearer_scope: str | None = setting(
        "sasl.oauthbearer.scope", None, "The scope to request from the token endpoint."
    )
    sasl_oauthbearer_extensions: tuple[str, ...] = setting(
        "sasl.oauthbearer.extensions", (), "SASL extensions for OAUTHBEARER, as name=value (KIP-342)."
    )
    sasl_login_connect_timeout_ms: int = setting(
        "sasl.login.connect.timeout.ms", 10_000, "How long connecting to the token endpoint may take.", at_least=1
    )
    sasl_login_read_timeout_ms: int = setting(
        "sasl.login.read.timeout.ms", 10_000, "How long the token endpoint may take to answer.", at_least=1
    )
    sasl_login_refresh_window_factor: float = setting(
        "sasl.login.refresh.window.factor",
        0.8,
        "A token is refreshed after this fraction of its lifetime.",
        at_least=0.5,
        at_most=1.0,
    )
    sasl_login_refresh_window_jitter: float = setting(
        "sasl.login.refresh.window.jitter",
        0.05,
        "The largest random fraction of a token's lifetime that is added to the window.",
        at_least=0.0,
        at_most=0.25,
    )
    sasl_login_refresh_min_period_seconds: int = setting(
        "sasl.login.refresh.min.period.seconds",
        60,
        "The minimum time between two refreshes, if the token's lifetime allows it.",
        at_least=0,
        at_most=900,
        kind="short",
    )
    sasl_login_refresh_buffer_seconds: int = setting(
        "sasl.login.refresh.buffer.seconds",
        300,
        "A token is refreshed this long before it expires, if its lifetime allows it.",
        at_least=0,
        at_most=3_600,
        kind="short",
    )

    @property
    def protocol(self) -> SecurityProtocol:
        return SecurityProtocol[self.security_protocol.upper()]

    def tls_settings(self) -> dict[str, str | None]:
        """The ssl settings as text, as `ottla.security.tls` reads them."""
        found: dict[str, str | None] = {}
        for name, known in settings_of(SecurityConfig).items():
            value = getattr(self, known.attribute)
            if name.startswith("ssl.") and name not in OBJECTS and value is not None:
                found[name] = ",".join(value) if isinstance(value, tuple) else value
        return found

    def find_jaas(self) -> JaasConfig | None:
        """The login module of sasl.jaas.config. Raises ConfigError without quoting it: it contains passwords."""
        return parse_jaas_config(self.sasl_jaas_config) if self.sasl_jaas_config else None


def check_security(config: SecurityConfig, written: Any) -> None:
    """Raises ConfigError for settings that contradict each other or would silently have no effect."""
    if "security.protocol" not in written:
        asked = sorted(name for name in written if name.startswith(TLS_AND_SASL))
        if asked:
            raise ConfigError(
                f"{asked[0]} has no effect: security.protocol is not set, so connections would not be secured",
                "Set security.protocol to SSL, SASL_SSL or SASL_PLAINTEXT; or to PLAINTEXT to ignore it.",
            )
    if config.protocol.uses_sasl:
        _check_sasl(config)
    if config.protocol.uses_tls:
        _check_tls(config)


def _check_tls(config: SecurityConfig) -> None:
    pair = {
        "ssl.key.location": config.ssl_key_location,
        "ssl.certificate.location": config.ssl_certificate_location,
    }
    missing = [name for name, value in pair.items() if not value]
    if len(missing) == 1:
        raise ConfigError(f"{missing[0]} is not set", "A private key and a certificate belong together.")
    others = {"ssl.keystore.location": config.ssl_keystore_location, "ssl.keystore.key": config.ssl_keystore_key}
    clash = next((name for name, value in others.items() if value), None)
    if not missing and clash:
        raise ConfigError(f"ssl.key.location and {clash} contradict each other", "Set only one of them.")


def _check_sasl(config: SecurityConfig) -> None:
    mechanism = config.sasl_mechanism
    if mechanism not in CLIENT_MECHANISMS:
        raise ConfigError(
            f"sasl.mechanism {mechanism} is not supported",
            f"Set it to {', '.join(CLIENT_MECHANISMS[:-1])} or {OAUTHBEARER}.",
        )
    jaas = config.find_jaas()
    if jaas is not None:
        if mechanism not in jaas.mechanisms:
            fitting = ", ".join(jaas.mechanisms) or "none of this client's mechanisms"
            raise ConfigError(
                f"sasl.jaas.config has the login module {jaas.module}, but sasl.mechanism is {mechanism}",
                f"This module is for {fitting}.",
            )
        if config.sasl_username or config.sasl_password:
            raise ConfigError("sasl.jaas.config and sasl.username are both set", "Set only one of them.")
    if mechanism == OAUTHBEARER:
        _check_oauth(config, jaas.options if jaas is not None else {})
    else:
        credentials(config)


def credentials(config: SecurityConfig) -> tuple[str, str]:
    """User and password for PLAIN and SCRAM."""
    jaas = config.find_jaas()
    if jaas is not None:
        username, password = jaas.options.get("username"), jaas.options.get("password")
        names = ("username in sasl.jaas.config", "password in sasl.jaas.config")
    else:
        username, password = config.sasl_username, config.sasl_password
        names = ("sasl.username", "sasl.password")
    for name, value in zip(names, (username, password), strict=True):
        if not value:
            raise ConfigError(
                f"sasl.mechanism {config.sasl_mechanism} needs a user and a password: {name} is not set",
                "Set sasl.jaas.config, or sasl.username and sasl.password.",
            )
    assert username
    assert password
    return username, password


def _check_oauth(config: SecurityConfig, options: Mapping[str, str]) -> None:
    sources = {
        "sasl.oauth.token.provider": config.sasl_oauth_token_provider,
        "sasl.oauthbearer.token.endpoint.url": config.sasl_oauthbearer_token_endpoint_url,
        "unsecuredLoginStringClaim_sub in sasl.jaas.config": options.get("unsecuredLoginStringClaim_sub"),
    }
    chosen = [name for name, value in sources.items() if value]
    if len(chosen) != 1:
        problem = f"{chosen[0]} and {chosen[1]} are both set" if chosen else "sasl.mechanism OAUTHBEARER needs a token"
        raise ConfigError(
            problem, "Set sasl.oauth.token.provider to a function, or sasl.oauthbearer.token.endpoint.url."
        )
    url = config.sasl_oauthbearer_token_endpoint_url
    if url:
        if not url.startswith(("https://", "http://")):
            raise ConfigError(f"sasl.oauthbearer.token.endpoint.url is not an HTTP address: {url}", "Write https://…")
        client_id, client_secret = client_credentials(config)
        if not client_id or not client_secret:
            raise ConfigError(
                "sasl.oauthbearer.token.endpoint.url needs a client id and a client secret",
                "Set sasl.oauthbearer.client.credentials.client.id and …client.secret, or clientId and clientSecret in "
                "sasl.jaas.config.",
            )


def client_credentials(config: SecurityConfig) -> tuple[str | None, str | None]:
    """Client id and secret for the token endpoint: older programs have them in sasl.jaas.config."""
    jaas = config.find_jaas()
    options = jaas.options if jaas is not None else {}
    return (
        config.sasl_oauthbearer_client_credentials_client_id or options.get("clientId"),
        config.sasl_oauthbearer_client_credentials_client_secret or options.get("clientSecret"),
    )
