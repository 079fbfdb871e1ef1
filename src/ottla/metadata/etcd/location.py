"""Where the metadata is in etcd: `etcd://host:port,host:port/prefix`, and how to log in. Pure."""

from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.checks import endpoint_from_text
from ottla.errors import ConfigError
from ottla.types import Endpoint

PLAIN, TLS = "etcd://", "etcds://"
DEFAULT_PORT = 2379
DEFAULT_PREFIX = "/ottla"
_EXAMPLE = "Write etcd://HOST:PORT,HOST:PORT/PREFIX, for example etcd://10.0.0.1:2379,10.0.0.2:2379/ottla."


Member = Endpoint
"""The client address of one member of etcd."""


class EtcdLocation(NamedTuple):
    members: tuple[Member, ...]
    prefix: str
    """All keys of the cluster begin with it: it starts with `/` and does not end with one."""
    uses_tls: bool

    def __str__(self) -> str:
        return f"{TLS if self.uses_tls else PLAIN}{','.join(map(str, self.members))}{self.prefix}"


@dataclass(frozen=True)
class EtcdAccess:
    """How brokers log in to etcd. The password is in no text form of this object."""

    ca_file: str | None = None
    """PEM certificates of the authorities that etcd's certificate is checked with; None for those of the system."""
    certificate_file: str | None = None
    key_file: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)


def is_etcd(location: str | None) -> bool:
    """Whether a metadata location is in etcd, not a file.

    >>> is_etcd("etcd://localhost"), is_etcd("/srv/ottla/metadata")
    (True, False)
    """
    return location is not None and location.startswith((PLAIN, TLS))


def parse_location(text: str) -> EtcdLocation:
    """Parses the value of `ottla.metadata`. Raises ConfigError, without repeating a password.

    >>> str(parse_location("etcd://10.0.0.1,10.0.0.2:2380/shop"))
    'etcd://10.0.0.1:2379,10.0.0.2:2380/shop'
    """
    scheme, _, rest = text.partition("://")
    addresses, slash, path = rest.partition("/")
    if "@" in addresses:
        raise ConfigError(
            "the address of etcd must not contain a user or a password",
            "Set ottla.etcd.user and ottla.etcd.password in the settings file instead.",
        )
    members = tuple(_member(text, address.strip()) for address in addresses.split(","))
    if len(set(members)) != len(members):
        raise ConfigError(f"{text}: a member is named twice", "Name each member of etcd once.")
    prefix = (slash + path).rstrip("/") or DEFAULT_PREFIX
    if "//" in prefix or not prefix.isprintable() or " " in prefix:
        raise ConfigError(f"{text}: the prefix {prefix!r} must be a path without empty parts or spaces", _EXAMPLE)
    return EtcdLocation(members, prefix, scheme == "etcds")


def _member(text: str, address: str) -> Member:
    member = endpoint_from_text(address, default_port=DEFAULT_PORT, needs_brackets=True)
    if member is None or not all(member):
        raise ConfigError(f"{text}: {address!r} is not HOST:PORT with a port from 1 to 65535", _EXAMPLE)
    return member
