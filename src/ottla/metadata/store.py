"""The port to the place that keeps the cluster's metadata: versioned keys, atomic commits, sessions, watches. Pure.

Keys are paths (`/brokers/topics/orders`), values are bytes. The semantics are the part of ZooKeeper's that both
stores can offer, so that one contract test holds for all of them:

- A key is created at version 0 and its version grows by one with each `Set`.
- `commit` applies all its operations or none. A version that does not match is a `Conflict`.
- A store object is one session. Ephemeral keys vanish with the session that made them: at once when it is
  closed, after a while when its process died or hangs.
- A watch is called on the event loop with every change under its prefix; each call is a step from one
  consistent state to a later one, and steps come in order. What a caller committed itself has been delivered
  when `commit` returns.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

ANY_VERSION = -1


class Entry(NamedTuple):
    """One key as stored. `created` and `modified` are store-wide revisions that only grow."""

    key: str
    value: bytes
    version: int
    created: int
    modified: int
    session_id: int = 0
    """The session an ephemeral key belongs to; 0 for a key that stays."""


class Change(NamedTuple):
    """A key's new entry, or None where it was removed."""

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
    """Changes nothing; fails if the key is missing or has another version."""

    key: str
    version: int = ANY_VERSION


Operation = Create | Set | Delete | Check
Watcher = Callable[[Sequence[Change]], None]


class Conflict(Exception):
    """A commit was refused and nothing of it was applied: `operation` met a key in another state."""

    def __init__(self, operation: Operation, found: str) -> None:
        super().__init__(f"{type(operation).__name__} {operation.key}: {found}")
        self.operation = operation


class SessionExpired(Exception):
    """This store's session is over: its ephemeral keys are gone. `start()` opens a new one."""


class StoreUnavailable(Exception):
    """The store could not be reached or could not write; nothing is known to have changed."""


class MetadataStore(ABC):
    """One session with the store. All methods are called on the event loop."""

    dead_sessions_linger = False
    """Whether the ephemeral keys of a process that died may outlive it for a while."""

    session_id: int
    session_timeout_ms: int
    on_expired: Callable[[], None] | None = None
    """Called on the event loop when the session was lost, not when it was closed."""

    @abstractmethod
    async def start(self) -> None:
        """Opens a session."""

    @abstractmethod
    async def close(self) -> None:
        """Ends the session; its ephemeral keys vanish at once."""

    @abstractmethod
    async def get(self, key: str) -> Entry | None:
        """One key, or None."""

    @abstractmethod
    async def scan(self, prefix: str) -> list[Entry]:
        """Every entry whose key starts with `prefix`, sorted by key."""

    @abstractmethod
    async def commit(self, operations: Sequence[Operation]) -> None:
        """Applies all operations or none; durable when it returns.

        Raises Conflict, SessionExpired or StoreUnavailable.
        """

    @abstractmethod
    async def sync(self) -> None:
        """Returns once every change committed before this call, by anyone, has been delivered to watches."""

    @abstractmethod
    def watch(self, prefix: str, watcher: Watcher) -> Callable[[], None]:
        """Calls `watcher` with changes under `prefix` from now on; the returned function ends that."""


def deliver(watchers: Sequence[tuple[str, Watcher]], changes: Sequence[Change]) -> None:
    """Hands each watcher the changes under its prefix, in one call."""
    for prefix, watcher in list(watchers):
        seen = changes if prefix == "/" else [change for change in changes if change.key.startswith(prefix)]
        if seen:
            watcher(seen)
