"""Who a client is: Kafka's principals, `User:alice`. Pure."""

from typing import NamedTuple

from ottla.errors import ConfigError

USER = "User"


class Principal(NamedTuple):
    """A type, which is `User` unless a custom one is used, and a name."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal(USER, "ANONYMOUS")
"""The principal of every client on a listener without authentication."""


def parse_principal(text: str) -> Principal:
    """Reads `User:alice`. Raises ConfigError.

    >>> parse_principal("User:CN=alice,O=shop")
    Principal(type='User', name='CN=alice,O=shop')
    """
    kind, colon, name = text.strip().partition(":")
    if not (kind and colon and name):
        raise ConfigError(f"{text!r} is not a principal", "Write TYPE:NAME, for example User:alice.")
    return Principal(kind, name)
