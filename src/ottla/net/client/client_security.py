"""How the client's side of a connection is secured: TLS before the first byte, SASL before the first request."""

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.security.protocols import SecurityProtocol

if TYPE_CHECKING:
    # The mechanisms are imported with the first login: every broker imports this module at its start.
    from ottla.security.sasl.client_exchanges import ClientExchange


@dataclass(frozen=True, repr=False)
class Login:
    """Who a client says it is, and how it proves it. `start` begins an exchange; each authentication needs a new one.

    >>> plain_login("alice", "secret")
    Login(PLAIN as alice)
    """

    mechanism: str
    username: str
    """For error messages. Empty if a token identifies the client."""
    start: Callable[[], Awaitable["ClientExchange"]]

    def __repr__(self) -> str:
        return f"Login({self})"

    def __str__(self) -> str:
        return f"{self.mechanism} as {self.username}" if self.username else self.mechanism


class ClientSecurity:
    """The security of all connections of a client, or of a broker to its peers.

    The context is created on first use: creating one reads files, and a client may never connect.
    """

    def __init__(
        self,
        protocol: SecurityProtocol,
        *,
        create_context: Callable[[], ssl.SSLContext] | None = None,
        login: Login | None = None,
    ) -> None:
        assert protocol.uses_tls == (create_context is not None)
        assert protocol.uses_sasl == (login is not None)
        self.protocol = protocol
        self.login = login
        self._create_context = create_context
        self._context: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"ClientSecurity({self.protocol.name}{f', {self.login}' if self.login is not None else ''})"

    @property
    def context(self) -> ssl.SSLContext | None:
        """The context of TLS connections; None without TLS. Raises ConfigError for files that cannot be used."""
        if self._context is None and self._create_context is not None:
            self._context = self._create_context()
        return self._context

    def reload(self) -> None:
        """Discards the context because its files have changed: the next connection recreates it."""
        self._context = None


def plain_login(username: str, password: str) -> Login:
    """Logs in with PLAIN."""

    async def start() -> "ClientExchange":
        from ottla.security.sasl.client_exchanges import PlainExchange

        return PlainExchange(username, password)

    return Login("PLAIN", username, start)


def scram_login(mechanism: str, username: str, password: str, *, is_delegation_token: bool = False) -> Login:
    """Logs in with SCRAM-SHA-256 or SCRAM-SHA-512."""

    async def start() -> "ClientExchange":
        from ottla.security.sasl.client_exchanges import ScramExchange

        return ScramExchange(mechanism, username, password, is_delegation_token=is_delegation_token)

    return Login(mechanism, username, start)
