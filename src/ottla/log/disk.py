"""The port to the file system, a thin layer over os.*. The log runs unchanged on `ottla.testing.SimDisk`."""

import errno
import fcntl
import functools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ottla.checks import unsigned_from_text
from ottla.errors import OttlaError

PRIVATE_FILE, PRIVATE_DIRECTORY = 0o600, 0o700
"""Nobody else on the machine may read records and metadata, whatever the umask of the process is."""

_IOV_MAX = 1024
"""The maximum number of buffers per writev (Linux and macOS)."""


class Disk:
    """Every file operation of the log. Handles are file descriptors; all errors are OSError.

    All calls come from one thread, except `sync`, `sync_directory` and compaction's work on its own files.
    """

    # --- one file -----------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> int:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), PRIVATE_FILE)
        try:
            # Not O_APPEND: with it, pwrite ignores its offset on Linux. Instead the position is kept at the end.
            os.lseek(handle, 0, os.SEEK_END)
        except OSError:
            os.close(handle)
            raise
        return handle

    def close(self, handle: int) -> None:
        os.close(handle)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def append(self, handle: int, buffers: Sequence[Any]) -> int:
        """Writes all of `buffers` at the end of the file, or nothing: a failed write is truncated."""
        wanted = sum(map(len, buffers))
        if len(buffers) <= _IOV_MAX and (written := os.writev(handle, buffers)) == wanted:
            return wanted
        if len(buffers) > _IOV_MAX:
            written = 0
        return self._append_slowly(handle, b"".join(buffers), written)

    def _append_slowly(self, handle: int, data: bytes, written: int) -> int:
        """Continues after a short write. If the disk is full, the next write fails and the error is raised."""
        try:
            while written < len(data):
                written += os.write(handle, data[written:])
        except OSError:
            self.truncate(handle, self.size(handle) - written)
            raise
        return written

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        return os.pread(handle, size, offset)

    def pwrite(self, handle: int, data: Any, offset: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(handle, view, offset)
            view, offset = view[written:], offset + written
        os.lseek(handle, 0, os.SEEK_END)

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)
        os.lseek(handle, size, os.SEEK_SET)

    def sync(self, handle: int) -> None:
        """Blocks until the file's bytes are on stable storage. Any thread."""
        os.fdatasync(handle) if hasattr(os, "fdatasync") else os.fsync(handle)

    @property
    def can_sync_all(self) -> bool:
        """Whether `sync_all` works here. Before Linux 5.8, syncfs does not report a failed write."""
        return _find_syncfs() is not None

    def sync_all(self, handle: int) -> None:
        """Syncs the whole file system that holds `handle`: much faster than syncing thousands of files. Any thread.

        OSError if a write to it failed since `handle` was opened.
        """
        syncfs = _find_syncfs()
        assert syncfs is not None
        number = syncfs(handle)
        if number:
            raise OSError(number, os.strerror(number))

    def run_all(self, jobs: Sequence[Callable[[], None]]) -> list[OSError | None]:
        """Runs jobs that block on the disk in parallel, and returns the error of each or None."""
        errors: list[OSError | None] = [None] * len(jobs)
        numbers = iter(range(len(jobs)))

        def work() -> None:
            for number in numbers:
                try:
                    jobs[number]()
                except OSError as error:
                    errors[number] = error

        threads = [threading.Thread(target=work, name="disk", daemon=True) for _ in range(min(8, len(jobs)) - 1)]
        for thread in threads:
            thread.start()
        work()
        for thread in threads:
            thread.join()
        return errors

    # --- names --------------------------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_directory(self, path: str) -> bool:
        """Creates a directory in an existing one. Returns whether it did: False if it exists."""
        try:
            os.mkdir(path, PRIVATE_DIRECTORY)
        except FileExistsError:
            return False
        return True

    def make_directories(self, path: str) -> None:
        os.makedirs(path, PRIVATE_DIRECTORY, exist_ok=True)

    def is_open_to_others(self, path: str) -> bool:
        """Whether users outside the directory's group can read or change it."""
        return bool(os.stat(path).st_mode & 0o007)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def remove(self, path: str) -> None:
        os.remove(path)

    def remove_tree(self, path: str) -> None:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    self.remove_tree(entry.path)
                else:
                    os.remove(entry.path)
        os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        """Blocks until created and renamed entries of `path` are on stable storage. Any thread."""
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def sync_file(self, path: str) -> None:
        """Blocks until a closed file's bytes are on stable storage. Any thread."""
        handle = self.open(path)
        try:
            self.sync(handle)
        finally:
            self.close(handle)

    def file_size(self, path: str) -> int:
        return os.stat(path).st_size

    # --- whole files --------------------------------------------------------------------------------------

    def read_file(self, path: str) -> bytes:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(handle, os.fstat(handle).st_size)
            while more := os.read(handle, 1 << 20):
                data += more
            return data
        finally:
            os.close(handle)

    def overwrite_file(self, path: str, data: bytes) -> None:
        """Writes a file in place, neither atomically nor synced: for content that is validated when it is read."""
        handle = self.open(path, create=True)
        try:
            self.truncate(handle, 0)
            self.append(handle, (data,))
        finally:
            self.close(handle)

    def write_file(self, path: str, data: bytes) -> None:
        """Replaces a file atomically: after a crash it has either the old or the new content."""
        temporary = path + ".tmp"
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
            self.sync(handle)
        finally:
            os.close(handle)
        os.replace(temporary, path)

    def lock(self, path: str) -> int:
        """Locks the file `path` until the handle is closed. OttlaError with the process id if another one holds it."""
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(handle, 32, 0).decode(errors="replace").strip()
            os.close(handle)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            who = f"process {holder}" if unsigned_from_text(holder) is not None else "another process"
            raise OttlaError(
                f"data directory {os.path.dirname(path)} is in use by {who}",
                "Stop that broker first, or use another data directory.",
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        return handle


@functools.cache
def _find_syncfs() -> Callable[[int], int] | None:
    """Linux's syncfs, which Python does not have: returns an error number, or 0."""
    version = [unsigned_from_text(part) or 0 for part in os.uname().release.split(".")[:2]]
    if sys.platform != "linux" or version < [5, 8]:
        return None
    import ctypes  # Needed at most once in the life of a broker.

    function = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    return None if function is None else lambda handle: ctypes.get_errno() if function(handle) else 0
