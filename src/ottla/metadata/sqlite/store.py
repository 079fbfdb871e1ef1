"""OWNER of the SQLite file that stores the metadata when all brokers run on one host.

Writes run in a dedicated thread, so the event loop never waits for the disk; reads are small and run on the loop.
After a commit the other sessions are woken through their named pipes. Each also polls SQLite's data version and the
other sessions' locks (microseconds): every 20 ms while there are others, once a second otherwise.

A session is a row and a locked file. The kernel releases the lock when the process ends, however it ends, so other
sessions detect a crash immediately. A process that hangs stops touching its file, and other sessions expire it after
`session_timeout_ms`, as ZooKeeper would. If it hangs inside a transaction, they kill it: it is on the same host.

On a full disk a session works on a copy in memory. It only accepts changes that are repeated in every session, which
is enough to serve what is stored, and it expires once there is space. That is allowed only while there is no other
session: two copies would be a split brain.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from ottla.clock import Clock, monotonic, system_clock
from ottla.errors import OttlaError
from ottla.metadata.sqlite.database_copy import SPACE_NEEDED_BYTES, copy_database, disk_full, free_bytes, is_disk_full
from ottla.metadata.sqlite.operations import COLUMNS, CommittedChanges, apply_operations, forget_removals, read_changes
from ottla.metadata.sqlite.schema import LOCK_WAIT_SECONDS, prepare_tables, use_wal
from ottla.metadata.sqlite.session_locks import Peers, SessionLocks, WakeUps
from ottla.metadata.store import Delete, Entry, MetadataStore, Operation, SessionExpired, StoreUnavailable

log = logging.getLogger("ottla.metadata")

POLL_ALONE_SECONDS = 1.0
POLL_TOGETHER_SECONDS = 0.02
REMOVALS_KEPT_SESSIONS = 10
"""Removed keys are kept for this many session timeouts. A session that is stalled for longer is treated as expired."""


@contextlib.contextmanager
def _transaction(writer: sqlite3.Connection) -> Iterator[None]:
    """A write transaction: committed at the end, rolled back after an error."""
    writer.execute("BEGIN IMMEDIATE")
    try:
        yield
        writer.execute("COMMIT")
    except BaseException:
        # SQLite ends the transaction itself if the disk is full.
        if writer.in_transaction:
            writer.execute("ROLLBACK")
        raise


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
        self._wake_ups = WakeUps(self._locks)
        self._seen_revision = 0
        self._data_version = -1
        self._peers = Peers(self._locks, lambda pid: os.kill(pid, signal.SIGKILL))
        self._touched_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._expiring: set[asyncio.Task[None]] = set()
        self._is_copy = False
        """Whether this session works on a copy in memory, because the disk is full."""

    # Sessions

    @property
    def is_confirmed(self) -> bool:
        # Others end the session when its file has not been touched for a timeout.
        if not self.session_id:
            return False
        return self._is_copy or self._monotonic() - self._touched_at < self.session_timeout_ms / 1000

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._touched_at = self._monotonic()
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
        self._wake_ups.listen(self.session_id, self._woken)
        self._poll()
        self._wake_ups.wake(self._peers.known)

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
            with _transaction(copy):
                self.session_id = self._add_session(copy)
                others = copy.execute("SELECT count(*) FROM sessions").fetchone()[0] - 1
        except sqlite3.Error as problem:
            raise OttlaError(
                f"cannot read metadata database {self.path}: {problem}",
                "Check that Ottla created the file, or restore it from a backup.",
            ) from problem
        if others:
            self.session_id, self._reader, self._writer = 0, None, None
            copy.close()
            raise OttlaError(
                f"{disk_full(self.path)}; {others} other brokers use it", "A broker can join when there is space."
            ) from error
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
            self._wake_ups.wake(self._peers.known)
            self._thread.shutdown(wait=False)
            self._thread = None
        self._wake_ups.close()
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._peers.known.clear()

    def _connect(self) -> sqlite3.Connection:
        # SQLite would create it readable for everyone. Its other files get the permissions of this one. Only a new file
        # is opened here: closing a file drops all locks that this process has on it, SQLite's too.
        # The next broker to stop would then consider itself the last one, and delete the WAL that the others write.
        with contextlib.suppress(OSError):  # SQLite reports what is wrong
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
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
        try:
            with _transaction(writer):
                session_id = self._add_session(writer)
                # Locked before the row is visible, so that others do not mistake a new session for a dead one.
                handle = self._locks.take(session_id)
        except BaseException:
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
                with _transaction(writer):
                    self._remove_session(session_id)
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
        await asyncio.shield(self._catch_up_after(written))

    async def _catch_up_after(self, written: "asyncio.Future[CommittedChanges | None]") -> None:
        try:
            committed = await written
        except SessionExpired:
            self._lose_session()
            raise
        except sqlite3.Error as error:
            problem = disk_full(self.path) if is_disk_full(error, self.path) else f"{self.path}: {error}"
            raise StoreUnavailable(problem) from error
        self._wake_ups.wake(self._peers.known)
        if committed is not None and committed.since == self._seen_revision and self.session_id:
            self._deliver(committed)
        else:
            self._catch_up()

    async def commit_repeatable(self, operations: Sequence[Operation]) -> None:
        if not self._is_copy:
            await self.commit(operations)
            return
        self._require_reader()
        self._commit(operations, self.session_id)
        self._catch_up()

    def _commit(self, operations: Sequence[Operation], session_id: int) -> "CommittedChanges | None":
        """Runs in the writer thread. Returns the changes: reading those of a large commit here keeps the loop free."""
        writer = self._writer
        if writer is None:
            raise SessionExpired()
        with _transaction(writer):
            if writer.execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).fetchone() is None:
                raise SessionExpired()
            self._apply(operations, session_id)
        try:
            return read_changes(writer, self._seen_revision, session_id)
        except sqlite3.Error:
            return None  # Committed nevertheless; the loop reads the changes.

    def _apply(self, operations: Sequence[Operation], session_id: int) -> None:
        """Inside a write transaction: applies every operation, or raises."""
        assert self._writer is not None
        now = self._clock()
        removed = apply_operations(self._writer, operations, session_id, now)
        if removed:
            forget_removals(self._writer, before=now - REMOVALS_KEPT_SESSIONS * self.session_timeout_ms)

    # Watching

    async def sync(self) -> None:
        self._require_reader()
        self._catch_up()

    def _catch_up(self) -> None:
        """Delivers everything committed since the last call to the watches, in one call."""
        if self._reader is not None and self.session_id:
            self._deliver(read_changes(self._reader, self._seen_revision, self.session_id))

    def _deliver(self, committed: "CommittedChanges") -> None:
        self._seen_revision = committed.revision
        if not committed.is_session_alive:
            self._lose_session()
        elif committed.changes:
            self._call_watchers(committed.changes)

    def _poll(self) -> None:
        """Checks for other sessions and their commits, and schedules the next check."""
        if self._reader is None or not self.session_id:
            return
        try:
            self._check_others(self._reader)
        except (sqlite3.Error, OSError):
            log.exception("%s: cannot read, will be retried", self.path)
        if self.session_id:
            alone = min(POLL_ALONE_SECONDS, self.session_timeout_ms / 3000)
            interval = POLL_TOGETHER_SECONDS if self._peers.known else alone
            self._timer = asyncio.get_running_loop().call_later(interval, self._poll)

    def _woken(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._poll()

    def _check_others(self, reader: sqlite3.Connection) -> None:
        now = self._monotonic()
        data_version = reader.execute("PRAGMA data_version").fetchone()[0]
        if data_version != self._data_version:
            self._catch_up()
            others = {
                session_id: timeout_ms
                for session_id, timeout_ms in reader.execute("SELECT id, timeout_ms FROM sessions")
                if session_id != self.session_id
            }
            self._peers.update(others, now)
            self._data_version = data_version
        if self.session_id:
            self._check_peers()

    def _check_peers(self) -> None:
        now = self._monotonic()
        if now - self._touched_at >= self.session_timeout_ms / 3000:
            os.utime(self._lock_handle)
            self._touched_at = now
        for session_id in self._peers.lost(now):
            task = asyncio.get_running_loop().create_task(self.expire(session_id))
            self._expiring.add(task)
            task.add_done_callback(self._expiring.discard)

    def is_losing_sessions(self) -> bool:
        if not self.session_id or not self._peers.known:
            return False
        self._check_peers()
        return self._peers.are_expiring

    async def expire(self, session_id: int) -> None:
        """Ends another session, whose process has ended or hangs."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._expire_in_thread, session_id)
            self._wake_ups.wake(self._peers.known)
            self._peers.known.pop(session_id, None)
            self._catch_up()
        except sqlite3.Error:
            log.exception("session %d: cannot expire it, will be retried", session_id)
            if (peer := self._peers.known.get(session_id)) is not None:
                peer.expiring_since = None

    def _expire_in_thread(self, session_id: int) -> None:
        writer = self._writer
        if writer is None:
            return
        # A session does not survive a power failure anyway, so ending it needs no sync.
        writer.execute("PRAGMA synchronous = NORMAL")
        try:
            with _transaction(writer):
                # Two sessions may expire a third one at the same time: only the first finds the row.
                if writer.execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).fetchone() is not None:
                    self._remove_session(session_id)
        finally:
            writer.execute("PRAGMA synchronous = FULL")

    def _lose_session(self) -> None:
        if not self.session_id:
            return
        log.warning("session %d: expired", self.session_id)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._peers.known.clear()
        self._wake_ups.close()
        session_id, self.session_id = self.session_id, 0
        self._release_lock(session_id)
        if self.on_expired is not None:
            asyncio.get_running_loop().call_soon(self.on_expired)
