"""OWNER of the security of a broker's listeners: TLS contexts, which follow changed files, and SASL mechanisms."""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from ottla.broker.authentication.sasl_listener import Exchange, Mechanism, SaslListener
from ottla.broker.settings.listener_security import ListenerSettings
from ottla.clock import Clock, MonotonicClock, system_clock
from ottla.errors import ConfigError
from ottla.net.server.server import Disconnect, Handle, ListenerSecurity
from ottla.security.certificates import CertificateError, read_certificate, read_pem_certificates
from ottla.security.principal import ANONYMOUS, USER, Principal
from ottla.security.principal_mapping import NoMatchingRule, principal_mapper
from ottla.security.protocols import SecurityProtocol
from ottla.security.sasl.scram_math import SCRAM_MECHANISMS, ScramCredential
from ottla.security.sasl.server_exchanges import OAUTHBEARER, PLAIN, OauthBearerServer, PlainServer, ScramServer
from ottla.security.tls import client_context, files_of, read_key_material, server_context

if TYPE_CHECKING:
    import ssl

    from ottla.broker.authentication.oauth_tokens import OauthTokens
    from ottla.net.client.client_security import ClientSecurity, Login

log = logging.getLogger("ottla.security")

CHECK_FILES_SECONDS = 10.0
"""How often key stores and trust stores are checked for changes."""
EXPIRY_WARNING_DAYS = 14


class ScramUsers(Protocol):
    """The users with SCRAM credentials."""

    def find(self, user: str, mechanism: str) -> ScramCredential | None: ...

    def iterations(self, mechanism: str) -> Sequence[int]: ...

    @property
    def secret(self) -> bytes:
        """For the fake credentials of unknown users."""
        ...


class TlsListener:
    """The TLS context of one listener: each new connection uses the newest one that could be loaded."""

    def __init__(self, settings: ListenerSettings, *, uses_sasl: bool) -> None:
        """Raises ConfigError."""
        self.name = settings.listener
        self._uses_sasl = uses_sasl
        self._tls = settings.tls(uses_sasl=uses_sasl)
        self._files = _stamps(self._tls)
        self._unusable: object = None
        """The settings and files that could not be loaded. They are retried, but logged once."""
        self.context = server_context(self._tls)
        self.expires = self._expiry(self._tls, is_first=True)
        """When the certificate expires, in seconds since 1970."""

    def reload(self, settings: ListenerSettings) -> bool:
        """Reloads the context if its settings or files have changed. If that fails, the old one is kept.

        Returns whether there is a new one.
        """
        tls = settings.tls(uses_sasl=self._uses_sasl)
        stamps = _stamps(tls)
        if tls == self._tls and stamps == self._files:
            return False
        try:
            context, expires = server_context(tls), self._expiry(tls, is_first=False)
        except (ConfigError, OSError, ValueError) as error:
            if self._unusable != (tls, stamps):
                log.error("listener %s: cannot use the new certificates, keeping the old ones: %s", self.name, error)
            self._unusable = (tls, stamps)
            return False
        self._files, self._tls = stamps, tls
        self.context, self.expires = context, expires
        return True

    def check(self, before: ListenerSettings, after: ListenerSettings) -> None:
        """Raises ConfigError if the settings have changed and cannot be used."""
        tls = after.tls(uses_sasl=self._uses_sasl)
        if tls != before.tls(uses_sasl=self._uses_sasl):
            server_context(tls)

    def _expiry(self, tls: Mapping[str, str | None], *, is_first: bool) -> int:
        key = read_key_material(tls)
        assert key is not None
        certificate = read_pem_certificates(key.chain)[0]
        days = (certificate.not_after - system_clock() // 1000) // 86_400
        if days < EXPIRY_WARNING_DAYS:
            log.warning("listener %s: the certificate of %s expires in %d days", self.name, certificate.subject, days)
        if not is_first:
            log.info("listener %s: new certificate of %s, valid for %d days", self.name, certificate.subject, days)
        return certificate.not_after


class Listeners:
    """The security of all listeners of a broker. Those with PLAINTEXT have none."""

    def __init__(
        self,
        protocols: Mapping[str, SecurityProtocol],
        texts: Mapping[str, str],
        *,
        dispatch: Handle,
        clock: Clock,
        monotonic: MonotonicClock,
        scram_users: ScramUsers,
    ) -> None:
        """`texts` are the broker's settings as text. Raises ConfigError."""
        self._scram_users = scram_users
        self.tls: dict[str, TlsListener] = {}
        self.sasl: dict[str, SaslListener] = {}
        self.security: dict[str, ListenerSecurity] = {}
        self.peer_security: ClientSecurity | None = None
        """How this broker connects to the others; None for plain TCP."""
        self._peer_listener = ""
        self._tokens: list[OauthTokens] = []
        self._texts = texts
        self._watching: asyncio.Task[None] | None = None
        for name, protocol in protocols.items():
            settings = ListenerSettings(texts, name)
            if protocol.uses_tls:
                self.tls[name] = TlsListener(settings, uses_sasl=protocol.uses_sasl)
            if protocol.uses_sasl:
                self.sasl[name] = SaslListener(
                    name,
                    {each: self._mechanism(each, settings, clock) for each in settings.mechanisms()},
                    dispatch=dispatch,
                    clock=clock,
                    monotonic=monotonic,
                    failure_delay_ms=settings.value("connection.failed.authentication.delay.ms"),
                    max_frame_bytes=settings.value("sasl.server.max.receive.size"),
                )
            if protocol is not SecurityProtocol.PLAINTEXT:
                self.security[name] = self._security(name, settings)

    def secure_peers(self, listener: str, protocol: SecurityProtocol) -> None:
        """Sets how to connect to `listener` of other brokers: with this broker's own settings. Raises ConfigError."""
        self._peer_listener = listener
        self.peer_security = _peer_security(lambda: ListenerSettings(self._texts, listener), protocol)

    def start(self) -> None:
        """Starts checking for changed files."""
        if self.tls:
            self._watching = asyncio.get_running_loop().create_task(self._watch())
        for tokens in self._tokens:
            tokens.start()

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        for tokens in self._tokens:
            tokens.stop()

    def reload(self, texts: Mapping[str, str] | None = None) -> None:
        """Applies changed settings and files."""
        self._texts = self._texts if texts is None else texts
        for name, listener in self.tls.items():
            if listener.reload(ListenerSettings(self._texts, name)) and self.peer_security is not None:
                self.peer_security.reload()

    def check(self, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Raises ConfigError if a listener with changed TLS settings could not use them. Nothing is changed."""
        for name, listener in self.tls.items():
            old, new = ListenerSettings(before, name), ListenerSettings(after, name)
            try:
                listener.check(old, new)
                if name == self._peer_listener and old.tls() != new.tls():
                    client_context(new.tls())
            except ConfigError as error:
                message = f"listener {name}: {new.named(error.message)}"
                raise ConfigError(message, new.named(error.hint or "")) from None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK_FILES_SECONDS)
            self.reload()

    def _security(self, name: str, settings: ListenerSettings) -> ListenerSecurity:
        tls, sasl = self.tls.get(name), self.sasl.get(name)
        return ListenerSecurity(
            None if tls is None else lambda: _context_of(tls),
            # With SASL the user comes from there, whatever the certificate says.
            None if tls is None or sasl is not None else _certificate_owner(settings),
            None if sasl is None else sasl.authenticator,
        )

    def _mechanism(self, name: str, settings: ListenerSettings, clock: Clock) -> Mechanism:
        start: Callable[[], Exchange]
        if name == PLAIN:
            jaas = settings.jaas(name)
            setting = f"listener.name.{settings.listener.lower()}.plain.sasl.jaas.config"
            users = {} if jaas is None else _users_of(jaas.options)
            if not users:
                raise ConfigError(
                    f"listener {settings.listener} offers PLAIN, but has no users",
                    f"Set {setting}=org.apache.kafka.common.security.plain.PlainLoginModule required "
                    f'user_alice="PASSWORD";',
                )

            def start() -> Exchange:
                return PlainServer(users)
        elif name in SCRAM_MECHANISMS:
            users_of, mechanism = self._scram_users, SCRAM_MECHANISMS[name]

            def start() -> Exchange:
                return ScramServer(
                    mechanism,
                    lambda user: users_of.find(user, name),
                    users_of.secret,
                    iterations=lambda: users_of.iterations(name),
                )
        else:
            assert name == OAUTHBEARER
            from ottla.broker.authentication.oauth_tokens import OauthTokens

            tokens = OauthTokens(settings, clock)
            self._tokens.append(tokens)

            def start() -> Exchange:
                return OauthBearerServer(tokens.verify)

        return Mechanism(start, settings.value("connections.max.reauth.ms", name))


def _peer_security(settings: Callable[[], ListenerSettings], protocol: SecurityProtocol) -> "ClientSecurity | None":
    if protocol is SecurityProtocol.PLAINTEXT:
        return None
    from ottla.net.client.client_security import ClientSecurity

    return ClientSecurity(
        protocol,
        create_context=(lambda: client_context(settings().tls())) if protocol.uses_tls else None,
        login=_peer_login(settings()) if protocol.uses_sasl else None,
    )


def _peer_login(settings: ListenerSettings) -> "Login":
    """How this broker logs in to the others: as the user of the mechanism's login module."""
    from ottla.net.client.client_security import plain_login, scram_login

    mechanism: str = settings.value("sasl.mechanism.inter.broker.protocol")
    if mechanism not in settings.mechanisms() or mechanism == OAUTHBEARER:
        raise ConfigError(
            f"sasl.mechanism.inter.broker.protocol is {mechanism}, which brokers cannot use with each other",
            f"Set it to PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, as enabled on listener {settings.listener}, or let "
            "brokers use another listener (inter.broker.listener.name).",
        )
    jaas = settings.jaas(mechanism)
    username, password = ("", "") if jaas is None else (jaas.options.get(name, "") for name in ("username", "password"))
    if not username or not password:
        raise ConfigError(
            f"this broker has no user to log in to the others with {mechanism}",
            f"Add username and password to listener.name.{settings.listener.lower()}.{mechanism.lower()}"
            ".sasl.jaas.config.",
        )
    return plain_login(username, password) if mechanism == PLAIN else scram_login(mechanism, username, password)


def _context_of(listener: TlsListener) -> "ssl.SSLContext":
    return listener.context


def _users_of(options: Mapping[str, str]) -> dict[str, str]:
    """Users and passwords of Kafka's PlainLoginModule: `user_alice="PASSWORD"`."""
    return {name.removeprefix("user_"): value for name, value in options.items() if name.startswith("user_")}


def _certificate_owner(settings: ListenerSettings) -> Callable[[bytes | None], Principal]:
    name_of = principal_mapper(settings.value("ssl.principal.mapping.rules"))

    def principal_of(certificate: bytes | None) -> Principal:
        if certificate is None:
            return ANONYMOUS
        try:
            return Principal(USER, name_of(read_certificate(certificate).subject))
        except (CertificateError, NoMatchingRule) as error:
            raise Disconnect(str(error)) from None

    return principal_of


def _stamps(tls: Mapping[str, str | None]) -> Sequence[tuple[int, int, int] | None]:
    """Values that change when a file does."""
    found: list[tuple[int, int, int] | None] = []
    for path in files_of(tls):
        try:
            status = os.stat(path)
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
        except OSError:
            found.append(None)
    return found
