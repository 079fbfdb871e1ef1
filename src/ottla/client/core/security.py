"""A client's security from its settings: the TLS context and the login of `ottla.net.client.client_security`."""

import ssl

from ottla.client.core.oauth import oauth_login
from ottla.client.core.security_settings import SecurityConfig, credentials
from ottla.errors import ConfigError
from ottla.net.client.client_security import ClientSecurity, Login, plain_login, scram_login
from ottla.security.protocols import SecurityProtocol
from ottla.security.sasl.client_exchanges import OAUTHBEARER, PLAIN
from ottla.security.tls import client_context, read_setting_file


def client_security(config: SecurityConfig) -> ClientSecurity | None:
    """None for PLAINTEXT. Reads the TLS files now; raises ConfigError if one cannot be used."""
    protocol = config.protocol
    if protocol is SecurityProtocol.PLAINTEXT:
        return None
    security = ClientSecurity(
        protocol,
        create_context=(lambda: _context(config)) if protocol.uses_tls else None,
        login=_login(config) if protocol.uses_sasl else None,
    )
    _ = security.context
    return security


def _context(config: SecurityConfig) -> ssl.SSLContext:
    if config.ssl_context is not None:
        if not isinstance(config.ssl_context, ssl.SSLContext):
            raise ConfigError(f"ssl.context is a {type(config.ssl_context).__name__}", "Pass an ssl.SSLContext.")
        return config.ssl_context
    settings = config.tls_settings()
    if config.ssl_key_location and config.ssl_certificate_location:
        settings["ssl.keystore.key"] = _read_pem("ssl.key.location", config.ssl_key_location)
        chain = _read_pem("ssl.certificate.location", config.ssl_certificate_location)
        settings["ssl.keystore.certificate.chain"] = chain
    context = client_context(settings)
    if not config.enable_ssl_certificate_verification:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _read_pem(name: str, path: str) -> str:
    try:
        return read_setting_file(name, path).decode()
    except UnicodeDecodeError:
        raise ConfigError(
            f"{name}: cannot read {path}: it is not a PEM file", "A PEM file has -----BEGIN … lines."
        ) from None


def _login(config: SecurityConfig) -> Login:
    mechanism = config.sasl_mechanism
    if mechanism == OAUTHBEARER:
        return oauth_login(config)
    username, password = credentials(config)
    if mechanism == PLAIN:
        return plain_login(username, password)
    jaas = config.find_jaas()
    is_token = jaas is not None and jaas.options.get("tokenauth", "").lower() == "true"
    return scram_login(mechanism, username, password, is_delegation_token=is_token)
