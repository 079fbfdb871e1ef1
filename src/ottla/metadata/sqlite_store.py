"""OWNER of the SQLite file that stores the metadata when all brokers run on one host.

Writes run in a dedicated thread, so the event loop never waits for the disk; reads are small and run on the loop.
Commits of other processes are detected by polling SQLite's data version (microseconds): every 50 ms while other
sessions exist, once a second otherwise.

A session is a row and a locked file. The kernel releases the lock when the process ends, however it ends, so other
sessions detect a crash immediately. A process that hangs stops touching its file, and other sessions expire it after
`session_timeout_ms`, as ZooKeeper would.

On a full disk a session works on a copy in memory. It only accepts changes that are made again in every session, which
is enough to serve what is stored, and it expires once there is space. No other session may exist then: the data
directory is locked by its broker.
"""

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from ottla.clock import Clock, monotonic, system_clock
from ottla.errors import OttlaError
from ottla.metadata.database_copy import SPACE_NEEDED_BYTES, copy_database, disk_full, free_bytes, is_disk_full
from ottla.metadata.session_locks import Peer, SessionLocks
from ottla.metadata.sqlite_schema import LOCK_WAIT_SECONDS, prepare_tables, use_wal
from ottla.metadata.store import (
    ANY_VERSION,
    Change,
    Check,
    Conflict,
    Create,
    Delete,
    Entry,
    MetadataStore,
    Operation,
    SessionExpired,
    Set,
    StoreUnavailable,
)

log = logging.getLogger("ottla.metadata")

COLUMNS = "key, value, version, created, modified, session_id"

POLL_ALONE_SECONDS = 1.0
POLL_TOGETHER_SECONDS = 0.05
REMOVALS_KEPT_SESSIONS = 10
"""Removed keys are kept for this many session timeouts. A session that is stalled for longer is treated as expired."""


class SqliteStore(MetadataStore):
    """One session with the metadata in one SQLite file."""

    def __init__(
        self,
        path: str,
        *,
        session_timeout_ms: int = 18_000,
        clock: Clock = system_clock,
        monotonic: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__()
        self.path = path
        self.session_id = 0
        self.session_timeout_ms = session_timeout_ms
        self._clock = clock
        self._monotonic = monotonic
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._locks = SessionLocks(path)
        self._lock_handle = -1
        self._seen_revision = 0
        self._data_version = -1
        self._peers: dict[int, Peer] = {}
        self._touched_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._expiring: set[asyncio.Task[None]] = set()
        self._is_copy = False
        """Whether this session works on a copy in memory, because the disk is full."""

    # Sessions

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="metadata-writer")
        try:
            self._lock_handle, self.session_id = await loop.run_in_executor(self._thread, self._open_session)
            if self._reader is None:
                self._reader = self._connect()
        except BaseException as error:
            await self.close()
            if is_disk_full(error, self.path):
                self._open_copy(error)
                return
            if isinstance(error, sqlite3.Error):
                raise OttlaError(
                    f"cannot open metadata database {self.path}: {error}",
                    "Check that the directory exists and is writable, and that Ottla created the file.",
                ) from error
            raise
        (self._seen_revision,) = self._reader.execute("SELECT revision FROM state").fetchone()
        self._data_version = -1
        if self._is_copy:
            log.info("%s: there is space on the disk again; metadata can be changed", self.path)
        self._is_copy = False
        self._poll()

    def _open_copy(self, error: BaseException) -> None:
        """Opens a session on a copy in memory. OttlaError if that is not possible either."""
        if not self._is_copy:
            log.error(
                "%s: the disk is full (%d bytes free: %s); serving what is stored, but metadata cannot be changed "
                "until %d bytes are free",
                self.path, free_bytes(self.path), error, SPACE_NEEDED_BYTES,
            )  # fmt: skip
        self._reader = self._writer = copy = copy_database(self.path)
        try:
            copy.execute("BEGIN IMMEDIATE")
            self.session_id = self._add_session(copy)
            copy.execute("COMMIT")
        except sqlite3.Error as problem:
            raise OttlaError(f"cannot read metadata database {self.path}: {problem}") from problem
        (self._seen_revision,) = copy.execute("SELECT revision FROM state").fetchone()
        self._is_copy = True
        self._wait_for_space()

    def _wait_for_space(self) -> None:
        if free_bytes(self.path) >= SPACE_NEEDED_BYTES:
            # The next session is one on disk, unless the disk is full again.
            self._lose_session()
            if self._writer is not None:
                self._writer.close()
            self._reader = self._writer = None
        else:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(POLL_ALONE_SECONDS, self._wait_for_space)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in list(self._expiring):
            await task
        if self._thread is not None:
            session_id, self.session_id = self.session_id, 0
            await asyncio.get_running_loop().run_in_executor(self._thread, self._close_session, session_id)
            self._thread.shutdown(wait=False)
            self._thread = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._peers.clear()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=LOCK_WAIT_SECONDS, isolation_level=None, check_same_thread=False)

    def _open_session(self) -> tuple[int, int]:
        """In the writer thread: creates the database if needed, removes dead sessions, adds this one."""
        if self._writer is None:
            self._writer = self._connect()
        writer = self._writer
        # A session does not survive a power failure anyway, so opening it needs no sync.
        writer.execute("PRAGMA synchronous = NORMAL")
        use_wal(writer, self._monotonic)
        handle = -1
        writer.execute("BEGIN IMMEDIATE")
        try:
            session_id = self._add_session(writer)
            # Locked before the row is visible, so that others do not take a new session for a dead one.
            handle = self._locks.take(session_id)
            writer.execute("COMMIT")
        except BaseException:
            # SQLite ends the transaction itself if the disk is full.
            if writer.in_transaction:
                writer.execute("ROLLBACK")
            if handle >= 0:
                # The next attempt gets the same session id, and would wait for this lock.
                os.close(handle)
                self._locks.remove(session_id)
            raise
        writer.execute("PRAGMA synchronous = FULL")
        return handle, session_id

    def _add_session(self, writer: sqlite3.Connection) -> int:
        """Inside a write transaction: creates the tables if needed, removes dead sessions, adds this one."""
        prepare_tables(writer, self.path)
        for (session_id,) in writer.execute("SELECT id FROM sessions").fetchall():
            if not self._locks.is_held(session_id):
                self._remove_session(session_id)
        writer.execute("INSERT INTO sessions (timeout_ms) VALUES (?)", (self.session_timeout_ms,))
        return int(writer.execute("SELECT last_insert_rowid()").fetchone()[0])

    def _close_session(self, session_id: int) -> None:
        writer = self._writer
        if writer is None:
            return
        try:
            if session_id:
                writer.execute("PRAGMA synchronous = NORMAL")
                writer.execute("BEGIN IMMEDIATE")
                self._remove_session(session_id)
                writer.execute("COMMIT")
        except sqlite3.Error:
            log.warning("session %d: cannot close it; the next start removes it", session_id, exc_info=True)
        finally:
            self._writer = None
            writer.close()
            self._release_lock(session_id)

    def _release_lock(self, session_id: int) -> None:
        handle, self._lock_handle = self._lock_handle, -1
        if handle >= 0:
            os.close(handle)
            self._locks.remove(session_id)

    def _remove_session(self, session_id: int) -> None:
        """Inside a write transaction: removes a session and its ephemeral keys."""
        assert self._writer is not None
        keys = [
            key
            for (key,) in self._writer.execute(
                "SELECT key FROM entries WHERE session_id = ? AND session_id != 0", (session_id,)
            )
        ]
        if keys:
            self._apply([Delete(key) for key in keys], session_id)
        self._writer.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
        self._locks.remove(session_id)

    # Reading

    async def get(self, key: str) -> Entry | None:
        row = self._require_reader().execute(f"SELECT {COLUMNS} FROM entries WHERE key = ?", (key,)).fetchone()
        return None if row is None else Entry(*row)

    async def scan(self, prefix: str) -> list[Entry]:
        rows = self._require_reader().execute(
            f"SELECT {COLUMNS} FROM entries WHERE key >= ? AND key < ? ORDER BY key",
            (prefix, prefix + "\U0010ffff"),
        )
        return [Entry(*row) for row in rows]

    def _require_reader(self) -> sqlite3.Connection:
        if not self.session_id or self._reader is None:
            raise SessionExpired()
        return self._reader

    # Writing

    async def commit(self, operations: Sequence[Operation]) -> None:
        self._require_reader()
        if self._is_copy:
            raise StoreUnavailable(disk_full(self.path))
        loop = asyncio.get_running_loop()
        # Shielded: if the caller is cancelled, the commit still happens and its changes must be delivered.
        written = loop.run_in_executor(self._thread, self._commit, operations, self.session_id)
        await asyncio.shield(self._and_catch_up(written))

    async def _and_catch_up(self, written: "asyncio.Future[_News | None]") -> None:
        try:
            news = await written
        except SessionExpired:
            self._lose_session()
            raise
        except sqlite3.Error as error:
            problem = disk_full(self.path) if is_disk_full(error, self.path) else f"{self.path}: {error}"
            raise StoreUnavailable(problem) from error
        if news is not None and news.since == self._seen_revision and self.session_id:
            self._deliver(news)
        else:
            self._catch_up()

    async def commit_repeatable(self, operations: Sequence[Operation]) -> None:
        if not self._is_copy:
            await self.commit(operations)
            return
        self._require_reader()
        self._commit(operations, self.session_id)
        self._catch_up()

    def _commit(self, operations: Sequence[Operation], session_id: int) -> "_News | None":
        """Runs in the writer thread. Returns the changes: reading those of a large commit here spares the loop."""
        writer = self._writer
        if writer is None:
            raise SessionExpired()
        writer.execute("BEGIN IMMEDIATE")
        try:
            if writer.execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).fetchone() is None:
                raise SessionExpired()
            self._apply(operations, session_id)
            writer.execute("COMMIT")
        except BaseException:
            if writer.in_transaction:
                writer.execute("ROLLBACK")
            raise
        try:
            return self._read_news(writer, self._seen_revision, session_id)
        except sqlite3.Error:
            return None  # It is committed all the same; the loop reads the changes.

    def _apply(self, operations: Sequence[Operation], session_id: int) -> None:
        """Inside a write transaction: applies every operation, or raises."""
        writer = self._writer
        assert writer is not None
        revision = writer.execute("SELECT revision FROM state").fetchone()[0] + 1
        execute = writer.execute
        removed = False
        for operation in operations:
            key = operation.key
            if isinstance(operation, Create):
                owner = session_id if operation.ephemeral else 0
                try:
                    execute(
                        "INSERT INTO entries VALUES (?, ?, 0, ?, ?, ?)",
                        (key, operation.value, revision, revision, owner),
                    )
                except sqlite3.IntegrityError:
                    raise Conflict(operation, "the key exists") from None
                continue
            if isinstance(operation, Set):
                cursor = execute(
                    "UPDATE entries SET value = ?, version = version + 1, modified = ? "
                    "WHERE key = ? AND (version = ? OR ? = -1)",
                    (operation.value, revision, key, operation.version, operation.version),
                )
            elif isinstance(operation, Delete):
                cursor = execute(
                    "DELETE FROM entries WHERE key = ? AND (version = ? OR ? = -1)",
                    (key, operation.version, operation.version),
                )
            if isinstance(operation, Check) or cursor.rowcount == 0:
                self._require(operation)
            if isinstance(operation, Delete):
                execute("INSERT OR REPLACE INTO removals VALUES (?, ?, ?)", (key, revision, self._clock()))
                removed = True
        execute("UPDATE state SET revision = ?", (revision,))
        if removed:
            self._forget_old_removals()

    def _require(self, operation: Set | Delete | Check) -> None:
        """Raises Conflict if the key is missing or has another version than `operation` expects."""
        assert self._writer is not None
        row = self._writer.execute("SELECT version FROM entries WHERE key = ?", (operation.key,)).fetchone()
        if row is None:
            raise Conflict(operation, "no such key")
        if operation.version not in (ANY_VERSION, row[0]):
            raise Conflict(operation, f"version {row[0]}, not {operation.version}")

    def _forget_old_removals(self) -> None:
        assert self._writer is not None
        before = self._clock() - REMOVALS_KEPT_SESSIONS * self.session_timeout_ms
        (newest,) = self._writer.execute("SELECT max(revision) FROM removals WHERE at_ms < ?", (before,)).fetchone()
        if newest is not None:
            self._writer.execute("DELETE FROM removals WHERE at_ms < ?", (before,))
            self._writer.execute("UPDATE state SET removals_kept_since = max(removals_kept_since, ?)", (newest,))

    # Watching

    async def sync(self) -> None:
        self._require_reader()
        self._catch_up()

    def _catch_up(self) -> None:
        """Delivers everything committed since the last call to the watches, in one call."""
        if self._reader is not None and self.session_id:
            self._deliver(self._read_news(self._reader, self._seen_revision, self.session_id))

    @staticmethod
    def _read_news(connection: sqlite3.Connection, since: int, session_id: int) -> "_News":
        """What was committed after revision `since`. On the event loop, or in the writer thread."""
        execute = connection.execute
        execute("BEGIN")  # one snapshot for all the reads
        try:
            revision, kept_since = execute("SELECT revision, removals_kept_since FROM state").fetchone()
            alive = execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).fetchone()
            changes: list[Change] = []
            if revision > since:
                rows = execute(f"SELECT {COLUMNS} FROM entries WHERE modified > ?", (since,))
                changes = [Change(row[0], Entry(*row), row[4]) for row in rows]
                removals = execute(
                    "SELECT key, revision FROM removals WHERE revision > ? "
                    "AND NOT EXISTS (SELECT 1 FROM entries WHERE entries.key = removals.key)",
                    (since,),
                )
                changes += [Change(key, None, at) for key, at in removals]
        finally:
            execute("COMMIT")
        changes.sort(key=lambda change: change.revision)
        return _News(since, revision, alive is not None and since >= kept_since, changes)

    def _deliver(self, news: "_News") -> None:
        self._seen_revision = news.revision
        if not news.is_session_alive:
            self._lose_session()
        elif news.changes:
            self._call_watchers(news.changes)

    def _poll(self) -> None:
        """Checks for other sessions and their commits, and schedules the next check."""
        if self._reader is None or not self.session_id:
            return
        try:
            self._look_around(self._reader)
        except (sqlite3.Error, OSError):
            log.exception("%s: cannot read, will be retried", self.path)
        if self.session_id:
            interval = POLL_TOGETHER_SECONDS if self._peers else POLL_ALONE_SECONDS
            self._timer = asyncio.get_running_loop().call_later(interval, self._poll)

    def _look_around(self, reader: sqlite3.Connection) -> None:
        data_version = reader.execute("PRAGMA data_version").fetchone()[0]
        if data_version != self._data_version:
            self._catch_up()
            others = {
                session_id: timeout_ms
                for session_id, timeout_ms in reader.execute("SELECT id, timeout_ms FROM sessions")
                if session_id != self.session_id
            }
            self._peers = {
                session_id: self._peers.get(session_id) or Peer(timeout_ms, self._monotonic())
                for session_id, timeout_ms in others.items()
            }
            self._data_version = data_version
        if self.session_id:
            self._check_peers()

    def _check_peers(self) -> None:
        now = self._monotonic()
        if not self._peers:
            return
        if now - self._touched_at >= self.session_timeout_ms / 3000:
            self._touched_at = now
            os.utime(self._lock_handle)
        for session_id, peer in self._peers.items():
            if peer.expiring:
                continue
            dead = not self._locks.is_held(session_id)
            if dead or peer.is_silent(self._locks.path(session_id), now):
                peer.expiring = True
                log.info("session %d: expiring, %s", session_id, "its process ended" if dead else "its process hangs")
                task = asyncio.get_running_loop().create_task(self.expire(session_id))
                self._expiring.add(task)
                task.add_done_callback(self._expiring.discard)

    async def expire(self, session_id: int) -> None:
        """Ends another session, whose process has ended or hangs."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._expire_in_thread, session_id)
            self._catch_up()
        except sqlite3.Error:
            log.exception("session %d: cannot expire it, will be retried", session_id)
            self._peers.pop(session_id, None)
            self._data_version = -1

    def _expire_in_thread(self, session_id: int) -> None:
        writer = self._writer
        if writer is None:
            return
        writer.execute("BEGIN IMMEDIATE")
        try:
            # Two sessions may expire a third one at the same time: only the first finds the row.
            if writer.execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).fetchone() is not None:
                self._remove_session(session_id)
            writer.execute("COMMIT")
        except BaseException:
            if writer.in_transaction:
                writer.execute("ROLLBACK")
            raise

    def _lose_session(self) -> None:
        if not self.session_id:
            return
        log.warning("session %d: expired", self.session_id)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._peers.clear()
        session_id, self.session_id = self.session_id, 0
        self._release_lock(session_id)
        if self.on_expired is not None:
            asyncio.get_running_loop().call_soon(self.on_expired)


class _News(NamedTuple):
    """What was committed after revision `since`, up to `revision`."""

    since: int
    revision: int
    is_session_alive: bool
    changes: list[Change]
