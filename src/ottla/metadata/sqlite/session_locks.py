"""The files next to a metadata file that show which of its sessions are alive, and that wake them.

A session has a locked file. The kernel releases the lock of a process that ends, however it ends. A process that hangs
stops touching its file. A session also has a named pipe, to which others write when they have committed something.
"""

import asyncio
import fcntl
import logging
import os
from collections.abc import Callable, Iterable, Mapping

from ottla.checks import unsigned_from_text

log = logging.getLogger("ottla.metadata")

STUCK_SECONDS = 0.25
"""How long ending the session of a hung process may take. After that, the process probably holds the write lock."""
_WRITE_LOCK_BYTE = 120
"""SQLite's write lock in WAL mode: this byte of the shared-memory file."""


class SessionLocks:
    """The lock files next to one metadata file, one for each session."""

    def __init__(self, path: str) -> None:
        self._path = path

    def path(self, session_id: int) -> str:
        return f"{self._path}-session-{session_id}"

    def take(self, session_id: int) -> int:
        """Creates and locks the file of a session; returns the handle that holds the lock."""
        handle = os.open(self.path(session_id), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            os.write(handle, str(os.getpid()).encode())
        except BaseException:
            os.close(handle)
            raise
        return handle

    def is_held(self, session_id: int) -> bool:
        """Whether the process of another session is alive."""
        try:
            handle = os.open(self.path(session_id), os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(handle)

    def pid(self, session_id: int) -> int | None:
        """The process of a session."""
        try:
            with open(self.path(session_id), "rb") as file:
                return unsigned_from_text(file.read())
        except FileNotFoundError:
            return None

    def remove(self, session_id: int) -> None:
        for path in (self.path(session_id), _pipe_path(self.path(session_id))):
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass

    def writing_process(self) -> int | None:
        """The process that holds SQLite's write lock; 0 if nobody does, None if unknown."""
        try:
            found = os.stat(f"{self._path}-shm")
            with open("/proc/locks") as file:
                return write_lock_holder(file, found.st_dev, found.st_ino) or 0
        except OSError:
            return None


def write_lock_holder(locks: Iterable[str], device: int, inode: int) -> int | None:
    """Finds the holder of the write lock in the lines of Linux's /proc/locks.

    >>> write_lock_holder(["4: POSIX  ADVISORY  WRITE 712 fe:00:1234 120 120"], os.makedev(0xFE, 0), 1234)
    712
    """
    file = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    for line in locks:
        fields = line.split()
        if len(fields) == 8 and fields[1] == "POSIX" and fields[3] == "WRITE" and fields[5] == file:
            last = float("inf") if fields[7] == "EOF" else int(fields[7])
            if int(fields[6]) <= _WRITE_LOCK_BYTE <= last:
                return int(fields[4])
    return None


class Peer:
    """What this session knows about another one."""

    __slots__ = ("expiring_since", "heard_at", "timeout_seconds", "touched_at_ns")

    def __init__(self, timeout_ms: int, now: float) -> None:
        self.timeout_seconds = timeout_ms / 1000
        self.heard_at = now
        self.touched_at_ns = 0
        self.expiring_since: float | None = None

    def is_silent(self, path: str, now: float) -> bool:
        """Whether the lock file has not been touched for a session timeout, by this process's own clock."""
        try:
            touched_at_ns = os.stat(path).st_mtime_ns
        except FileNotFoundError:
            return True
        if touched_at_ns != self.touched_at_ns:
            self.touched_at_ns, self.heard_at = touched_at_ns, now
        return now - self.heard_at > self.timeout_seconds


class Peers:
    """The other sessions: which of them are dead, and which hang."""

    def __init__(self, locks: SessionLocks, kill: Callable[[int], None]) -> None:
        self._locks = locks
        self._kill = kill
        self.known: dict[int, Peer] = {}

    def update(self, timeouts_ms: Mapping[int, int], now: float) -> None:
        """Updates the peers from the stored sessions, by id with their timeouts."""
        known = self.known
        self.known = {id_: known.get(id_) or Peer(timeout_ms, now) for id_, timeout_ms in timeouts_ms.items()}

    @property
    def are_expiring(self) -> bool:
        """Whether a session is being ended."""
        return any(peer.expiring_since is not None for peer in self.known.values())

    def lost(self, now: float) -> list[int]:
        """The sessions to end now: their process has ended, or hangs."""
        found = []
        for session_id, peer in self.known.items():
            if peer.expiring_since is not None:
                if now - peer.expiring_since > STUCK_SECONDS:
                    self._end_stuck_process(session_id, peer, now)
                continue
            is_dead = not self._locks.is_held(session_id)
            if is_dead or peer.is_silent(self._locks.path(session_id), now):
                peer.expiring_since = now
                found.append(session_id)
                why = "its process ended" if is_dead else "its process hangs"
                log.info("session %d: expiring, %s", session_id, why)
        return found

    def _end_stuck_process(self, session_id: int, peer: Peer, now: float) -> None:
        """A process that was stopped inside a transaction would block all others forever.

        It is on this host, so killing it is the only sure way to end its transaction. It has been silent for a session
        timeout: the others may take over its leadership.
        """
        pid = self._locks.pid(session_id)
        if pid is None or pid == os.getpid() or not peer.is_silent(self._locks.path(session_id), now):
            return
        if not self._locks.is_held(session_id) or self._locks.writing_process() not in (pid, None):
            return
        peer.expiring_since = now
        log.error(
            "session %d: its process %d hangs and holds the write lock of the metadata; killing it", session_id, pid
        )
        self._kill(pid)


def _pipe_path(lock_path: str) -> str:
    return f"{lock_path}.wake"


class WakeUps:
    """OWNER of this session's named pipe. Others write to it after a commit, so that nobody has to poll often."""

    def __init__(self, locks: SessionLocks) -> None:
        self._locks = locks
        self._handle = -1

    def listen(self, session_id: int, woken: Callable[[], None]) -> None:
        """Calls `woken` when another session has committed something. Without pipes, only polling detects commits."""
        path = _pipe_path(self._locks.path(session_id))
        try:
            os.mkfifo(path, 0o600)
            handle = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        except OSError as error:
            log.warning("%s: cannot create a named pipe (%s): changes are seen a little later", path, error)
            return

        def read() -> None:
            try:
                os.read(handle, 4096)
            except BlockingIOError:
                return
            woken()

        try:
            asyncio.get_running_loop().add_reader(handle, read)
        except NotImplementedError:
            os.close(handle)
            return
        self._handle = handle

    def wake(self, session_ids: Iterable[int]) -> None:
        for session_id in session_ids:
            try:
                handle = os.open(_pipe_path(self._locks.path(session_id)), os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                continue  # it is gone, or has no pipe
            try:
                os.write(handle, b".")
            except OSError:
                pass  # full: it will wake up anyway
            finally:
                os.close(handle)

    def close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            asyncio.get_running_loop().remove_reader(handle)
            os.close(handle)
