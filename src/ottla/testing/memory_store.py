"""A metadata store in memory, for tests and simulations. It follows the same contract as the SQLite store."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from ottla.metadata.store import (
    Change,
    Check,
    Create,
    Delete,
    Entry,
    MetadataStore,
    Operation,
    SessionExpired,
    Set,
    check_operation,
)


class Session(Protocol):
    """What the tree needs of a session: to notify it of every commit."""

    def enqueue(self, changes: list[Change]) -> None: ...


class MemoryTree:
    """The entries and sessions that all stores of one test share."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.revision = 0
        self.stores: dict[int, Session] = {}
        self.commits = 0
        self._sessions_opened = 0

    def open_session(self, store: Session) -> int:
        self._sessions_opened += 1
        self.stores[self._sessions_opened] = store
        return self._sessions_opened

    def end_session(self, session_id: int) -> None:
        self.stores.pop(session_id, None)
        gone = [entry.key for entry in self.entries.values() if entry.session_id == session_id]
        if gone:
            self.apply([Delete(key) for key in gone], session_id)

    def expire(self, store: "MemoryStore") -> None:
        """Ends the session of `store`, as if its process had hung for longer than the session timeout."""
        self.end_session(store.session_id)
        store.expire()

    def apply(self, operations: Sequence[Operation], session_id: int) -> None:
        # First to a map of the changes, so that nothing has changed if one of the operations fails.
        entries: dict[str, Entry | None] = {}
        revision = self.revision + 1
        changed: dict[str, Change] = {}
        for operation in operations:
            key = operation.key
            found = entries[key] if key in entries else self.entries.get(key)
            check_operation(operation, found)
            if isinstance(operation, Create):
                owner = session_id if operation.ephemeral else 0
                entries[key] = Entry(key, operation.value, 0, revision, revision, owner)
            elif isinstance(operation, Set):
                assert found is not None
                entries[key] = found._replace(value=operation.value, version=found.version + 1, modified=revision)
            elif isinstance(operation, Delete):
                entries[key] = None
            if not isinstance(operation, Check):
                changed[key] = Change(key, entries[key], revision)
        for key, entry in entries.items():
            if entry is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = entry
        self.revision = revision
        self.commits += 1
        for store in self.stores.values():
            store.enqueue(list(changed.values()))


class MemoryStore(MetadataStore):
    """One session with a MemoryTree."""

    def __init__(self, tree: MemoryTree | None = None, *, session_timeout_ms: int = 18_000) -> None:
        super().__init__()
        self.tree = tree or MemoryTree()
        self.session_id = 0
        self.session_timeout_ms = session_timeout_ms
        self._undelivered: deque[list[Change]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._undelivered.clear()
        self.session_id = self.tree.open_session(self)

    async def close(self) -> None:
        session_id, self.session_id = self.session_id, 0
        if session_id:
            self.tree.end_session(session_id)

    async def get(self, key: str) -> Entry | None:
        self._require_session()
        return self.tree.entries.get(key)

    async def scan(self, prefix: str) -> list[Entry]:
        self._require_session()
        return sorted(entry for entry in self.tree.entries.values() if entry.key.startswith(prefix))

    async def commit(self, operations: Sequence[Operation]) -> None:
        self._require_session()
        # Real stores answer after a round trip or a disk write: other tasks run before the result is known.
        await asyncio.sleep(0)
        self._require_session()
        self.tree.apply(operations, self.session_id)
        self._deliver()

    async def sync(self) -> None:
        self._require_session()
        self._deliver()

    def enqueue(self, changes: list[Change]) -> None:
        self._undelivered.append(changes)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon(self._deliver)

    def expire(self) -> None:
        self.session_id = 0
        self._undelivered.clear()
        if self._loop is not None and self.on_expired is not None:
            self._loop.call_soon(self.on_expired)

    def _deliver(self) -> None:
        while self._undelivered and self.session_id:
            self._call_watchers(self._undelivered.popleft())

    def _require_session(self) -> None:
        if not self.session_id:
            raise SessionExpired()
