"""The locked files that show which sessions with a metadata file are alive.

The kernel releases the lock of a process that ends, however it ends. A process that hangs stops touching its file.
"""

import fcntl
import os


class SessionLocks:
    """The lock files next to one metadata file, one for each session."""

    def __init__(self, path: str) -> None:
        self._path = path

    def path(self, session_id: int) -> str:
        return f"{self._path}-session-{session_id}"

    def take(self, session_id: int) -> int:
        """Creates and locks the file of a session; returns the handle that holds the lock."""
        handle = os.open(self.path(session_id), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
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

    def remove(self, session_id: int) -> None:
        try:
            os.unlink(self.path(session_id))
        except FileNotFoundError:
            pass


class Peer:
    """What this session knows about another one."""

    __slots__ = ("expiring", "heard_at", "timeout_seconds", "touched_at_ns")

    def __init__(self, timeout_ms: int, now: float) -> None:
        self.timeout_seconds = timeout_ms / 1000
        self.heard_at = now
        self.touched_at_ns = 0
        self.expiring = False

    def is_silent(self, path: str, now: float) -> bool:
        """Whether the lock file has not been touched for a session timeout, by this process's own clock."""
        try:
            touched_at_ns = os.stat(path).st_mtime_ns
        except FileNotFoundError:
            return True
        if touched_at_ns != self.touched_at_ns:
            self.touched_at_ns, self.heard_at = touched_at_ns, now
        return now - self.heard_at > self.timeout_seconds
