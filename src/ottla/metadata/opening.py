"""Opens the store of a metadata location: a file (SQLite), or a prefix in etcd."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.clock import Clock, system_clock
from ottla.errors import OttlaError
from ottla.metadata.etcd.location import EtcdAccess, is_etcd, parse_location

if TYPE_CHECKING:
    from ottla.metadata.config import ControllerConfig
    from ottla.metadata.store import MetadataStore


METADATA_DIRECTORY, DATABASE_FILE = "metadata", "metadata.sqlite"
"""Names in the data directory of a broker that keeps its metadata there."""


def prepare_metadata_file(path: str, make_directories: Callable[[str], None]) -> str:
    """The metadata file at `path`, or in the directory at `path`. Its directory exists when this returns."""
    if os.path.isdir(path):
        path = os.path.join(path, DATABASE_FILE)
    try:
        make_directories(os.path.dirname(path) or ".")
    except OSError as error:
        raise OttlaError(
            f"cannot use {path} as metadata file: {error.strerror or error}",
            "Choose a file in a directory you can write to with --metadata PATH.",
        ) from None
    return path


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
