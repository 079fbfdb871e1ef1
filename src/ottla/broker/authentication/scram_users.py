"""The users with SCRAM credentials in the cluster's current image, and how the first ones are created."""

import asyncio
import os
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ottla.checks import unsigned_from_text
from ottla.errors import ConfigError, KafkaError, OttlaError
from ottla.metadata.changes.scram_changes import Upsertion, config_with, find_credential, iterations_in_use, user_key
from ottla.metadata.etcd.location import EtcdAccess, is_etcd
from ottla.metadata.image import ClusterImage
from ottla.metadata.opening import open_store, prepare_metadata_file
from ottla.metadata.records import read_config, write_config
from ottla.metadata.store import Conflict, Create, MetadataStore, Set
from ottla.security.sasl.scram_math import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SALT_BYTES,
    SCRAM_MECHANISMS,
    ScramCredential,
    ScramMechanism,
    salted_password,
)

SESSION_TIMEOUT_MS = 18_000
ATTEMPTS = 10
_ADD_SCRAM = re.compile(r"\s*([A-Za-z0-9-]+)\s*=\s*\[(.*)\]\s*", re.DOTALL)
_EXAMPLE = "Write SCRAM-SHA-512=[name=admin,password=PASSWORD]."


class ImageUsers:
    """Looks users up in the current image."""

    def __init__(self, image: Callable[[], ClusterImage]) -> None:
        self._image = image
        self.secret = b""

    def find(self, user: str, mechanism: str) -> ScramCredential | None:
        return find_credential(self._image(), user, mechanism)

    def iterations(self, mechanism: str) -> Sequence[int]:
        return iterations_in_use(self._image(), mechanism)


class NewUser(NamedTuple):
    """A user to create before a broker runs."""

    name: str
    password: str
    mechanism: ScramMechanism
    iterations: int = MIN_ITERATIONS

    def __repr__(self) -> str:
        return f"NewUser({self.name}, {self.mechanism.name})"  # without the password


def read_add_scram(text: str) -> list[NewUser]:
    """The users of one `--add-scram`; those in a file, one per line, for `@FILE`. Raises OttlaError."""
    if not text.startswith("@"):
        return [parse_add_scram(text)]
    try:
        with open(text[1:], encoding="utf-8") as file:
            return [parse_add_scram(line) for line in file if line.strip()]
    except OSError as error:
        raise OttlaError(
            f"--add-scram: cannot read {text[1:]}: {error.strerror or error}",
            "Check the path, and that this user may read it.",
        ) from None


def parse_add_scram(text: str) -> NewUser:
    """Reads the form of kafka-storage: `SCRAM-SHA-512=[name=admin,password=secret]`. Raises ConfigError.

    The error does not repeat the text, which holds a password.
    """
    found = _ADD_SCRAM.fullmatch(text)
    mechanism = None if found is None else SCRAM_MECHANISMS.get(found[1].upper())
    if found is None or mechanism is None:
        raise ConfigError(f"--add-scram does not begin with {' or '.join(SCRAM_MECHANISMS)}", _EXAMPLE)
    options = {}
    for pair in found[2].split(","):
        name, equals, value = pair.strip().partition("=")
        if not equals:
            raise ConfigError("--add-scram has an option without a value", _EXAMPLE)
        options[name.strip().lower()] = value.strip().strip('"')
    unknown = options.keys() - {"name", "password", "iterations"}
    if unknown:
        raise ConfigError(f"--add-scram has unknown options: {', '.join(sorted(unknown))}", _EXAMPLE)
    if not options.get("name") or not options.get("password"):
        raise ConfigError("--add-scram needs a name and a password", _EXAMPLE)
    number = options.get("iterations", str(MIN_ITERATIONS))
    iterations = unsigned_from_text(number)
    if iterations is None or not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise ConfigError(
            f"--add-scram has invalid iterations: {number}", f"Use a number from {MIN_ITERATIONS} to {MAX_ITERATIONS}."
        )
    return NewUser(options["name"], options["password"], mechanism, iterations)


async def add_users_to(
    location: str, users: Sequence[NewUser], *, replace: bool, access: EtcdAccess | None = None
) -> list[str]:
    """Stores users in the metadata at `location`, whether a broker runs or not. Returns the names of the new ones.

    Without `replace`, a user that has a credential for the mechanism keeps it.
    """
    if not is_etcd(location):
        location = prepare_metadata_file(location, _make_private)
    store = open_store(location, access, session_timeout_ms=SESSION_TIMEOUT_MS)
    await store.start()
    try:
        return [user.name for user in users if await _add(store, user, replace)]
    finally:
        await store.close()


def _make_private(directory: str) -> None:
    """Creates a directory, and those above it that are missing, for this user only: it may be the data directory."""
    # The mode of os.makedirs is that of the last directory only.
    if directory and not os.path.isdir(directory):
        _make_private(os.path.dirname(directory))
        os.makedirs(directory, 0o700, exist_ok=True)


async def _add(store: MetadataStore, user: NewUser, replace: bool) -> bool:
    salt = os.urandom(SALT_BYTES)
    salted = await asyncio.to_thread(salted_password, user.mechanism, user.password, salt, user.iterations)
    new = Upsertion(user.name, user.mechanism.number, user.iterations, salt, salted)
    key = user_key(user.name)
    for _ in range(ATTEMPTS):
        entry = await store.get(key)
        config = {} if entry is None else dict(read_config(key, entry.value))
        if user.mechanism.name in config and not replace:
            return False
        try:
            value = write_config(config_with(config, [new]))
            await store.commit([Create(key, value) if entry is None else Set(key, value, entry.version)])
        except Conflict:
            continue  # changed meanwhile
        except KafkaError as error:
            raise OttlaError(f"cannot add user {user.name}: {error.detail}") from None
        return True
    raise OttlaError(f"cannot add user {user.name}: its settings keep changing", "Try again.")
