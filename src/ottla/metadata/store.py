"""The port to the store of the cluster's metadata: versioned keys, atomic commits, sessions, watches. Pure.

Keys are paths (`/brokers/topics/orders`), values are bytes. The semantics are a subset of ZooKeeper's that every
store can implement; `tests/unit/metadata/test_store_contract.py` runs the same tests on all of them:

- A key is created at version 0, and each `Set` increments its version.
- `commit` is atomic: it applies all operations or none. A version that does not match raises `Conflict`. Entries of one
  commit have the same revision; in a commit of more than a hundred operations, only the first fifty are guaranteed to.
- A store object is one session. Ephemeral keys are removed with the session that created them: immediately when it
  is closed, after a timeout when its process crashes or hangs.
- A watch is called on the event loop with every change under its prefix. Each call leads from one consistent state
  to a later one, and calls are in order. A session's own commits have been delivered when `commit` returns.
- Answers and watch calls of one session arrive in the order in which the store handled them: what `scan` returns is not
  older than what a watch has already delivered.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

ANY_VERSION = -1


class Entry(NamedTuple):
    """One key as stored. `created` and `modified` are revisions of the whole store and only increase."""

    key: str
    value: bytes
    version: int
    created: int
    modified: int
    session_id: int = 0
    """The session of an ephemeral key; 0 for a persistent key."""


class Change(NamedTuple):
    """A key's new entry, or None if the key was removed."""

    key: str
    entry: Entry | None
    revision: int


class Create(NamedTuple):
    """Fails if the key exists."""

    key: str
    value: bytes
    ephemeral: bool = False


class Set(NamedTuple):
    """Fails if the key is missing or has another version."""

    key: str
    value: bytes
    version: int = ANY_VERSION


class Delete(NamedTuple):
    """Fails if the key is missing or has another version."""

    key: str
    version: int = ANY_VERSION


class Check(NamedTuple):
    """Changes nothing; fails if the key is missing, has another version, or was created at another revision."""

    key: str
    version: int = ANY_VERSION
    created: int = ANY_VERSION


Operation = Create | Set | Delete | Check
Watcher = Callable[[Sequence[Change]], None]


class Conflict(Exception):
    """A commit was rejected and nothing of it applied: the key of `operation` is not in the expected state."""

    def __init__(self, operation: Operation, found: str) -> None:
        super().__init__(f"{type(operation).__name__} {operation.key}: {found}")
        self.operation = operation


def check_operation(operation: Operation, found: Entry | None) -> None:
    """Raises Conflict if an operation does not match the entry that was found."""
    if isinstance(operation, Create):
        if found is not None:
            raise Conflict(operation, "the key exists")
    elif found is None:
        raise Conflict(operation, "no such key")
    elif operation.version not in (ANY_VERSION, found.version):
        raise Conflict(operation, f"version {found.version}, not {operation.version}")
    elif isinstance(operation, Check) and operation.created not in (ANY_VERSION, found.created):
        raise Conflict(operation, f"created at {found.created}, not {operation.created}")


class SessionExpired(Exception):
    """This store's session has expired and its ephemeral keys are removed. `start()` opens a new session."""


class StoreUnavailable(Exception):
    """The store cannot be reached or cannot write; it is unknown whether anything changed."""


class MetadataStore(ABC):
    """One session with the store. All methods are called on the event loop."""

    dead_sessions_linger = False
    """Whether the ephemeral keys of a crashed process can remain until its session times out."""

    session_id: int
    session_timeout_ms: int
    on_expired: Callable[[], None] | None = None
    """Called on the event loop when the session expires, not when it is closed."""

    def __init__(self) -> None:
        self._watchers: list[tuple[str, Watcher]] = []

    @property
    def is_confirmed(self) -> bool:
        """Whether the session was confirmed within its timeout, by this process's own clock: until then no other
        session can have ended it."""
        return bool(self.session_id)

    def is_losing_sessions(self) -> bool:
        """Checks whether the process of another session has just ended and its ephemeral keys still exist."""
        return False

    @abstractmethod
    async def start(self) -> None:
        """Opens a session."""

    @abstractmethod
    async def close(self) -> None:
        """Ends the session and removes its ephemeral keys."""

    @abstractmethod
    async def get(self, key: str) -> Entry | None:
        """One entry, or None if the key does not exist."""

    @abstractmethod
    async def scan(self, prefix: str) -> list[Entry]:
        """Every entry whose key starts with `prefix`, sorted by key."""

    @abstractmethod
    async def commit(self, operations: Sequence[Operation]) -> None:
        """Applies all operations or none; durable when it returns.

        Raises Conflict, SessionExpired or StoreUnavailable.
        """

    async def commit_repeatable(self, operations: Sequence[Operation]) -> None:
        """Like `commit`, for changes that are repeated in every session: the registration of a broker, elections. A
        store that cannot write at the moment may keep them in memory until it expires the session."""
        await self.commit(operations)

    @abstractmethod
    async def sync(self) -> None:
        """Returns when every change committed before this call, by any session, has been delivered to watches."""

    def watch(self, prefix: str, watcher: Watcher) -> Callable[[], None]:
        """Calls `watcher` with changes under `prefix` from now on. The returned function removes the watch."""
        registered = (prefix, watcher)
        self._watchers.append(registered)
        return lambda: self._watchers.remove(registered) if registered in self._watchers else None

    def _call_watchers(self, changes: Sequence[Change]) -> None:
        """Calls each watcher once with the changes under its prefix."""
        for prefix, watcher in list(self._watchers):
            seen = changes if prefix == "/" else [change for change in changes if change.key.startswith(prefix)]
            if seen:
                watcher(seen)
