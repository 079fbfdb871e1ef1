"""Opens the store of a metadata location: a file (SQLite), or a prefix in etcd."""

from typing import TYPE_CHECKING

from ottla.clock import Clock, system_clock
from ottla.metadata.etcd.location import EtcdAccess, is_etcd, parse_location

if TYPE_CHECKING:
    from ottla.metadata.config import ControllerConfig
    from ottla.metadata.store import MetadataStore


METADATA_DIRECTORY, DATABASE_FILE = "metadata", "metadata.sqlite"
"""Names in the data directory of a broker that keeps its metadata there."""


def open_store(
    location: str, access: EtcdAccess | None = None, *, session_timeout_ms: int, clock: Clock = system_clock
) -> "MetadataStore":
    """A store that is not started yet. `location` is a file or `etcd://HOST:PORT,.../PREFIX`."""
    # Each is imported only where it is used, for a quick start.
    if is_etcd(location):
        from ottla.metadata.etcd.store import EtcdStore

        return EtcdStore(parse_location(location), access, session_timeout_ms=session_timeout_ms)
    from ottla.metadata.sqlite.store import SqliteStore

    return SqliteStore(location, session_timeout_ms=session_timeout_ms, clock=clock)


def access_of(config: "ControllerConfig") -> EtcdAccess:
    """How to log in to etcd, from a broker's settings."""
    return EtcdAccess(
        config.etcd_ca_file,
        config.etcd_certificate_file,
        config.etcd_key_file,
        config.etcd_user,
        config.etcd_password,
    )
