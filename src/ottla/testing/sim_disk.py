"""A simulated disk: it can be full, fail on demand, and lose what was not synced.

>>> platter = SimPlatter(loop)
>>> disk = platter.disk()
>>> disk.make_directories("/data")
>>> handle = disk.open("/data/log", create=True)
>>> disk.append(handle, [b"synced"])
>>> disk.sync(handle)
>>> disk.append(handle, [b"not synced"])
>>> platter.power_loss()                      # the second write may be gone, whole or in part
"""

import errno
from collections.abc import Callable, Sequence
from typing import Any

from ottla.errors import OttlaError
from ottla.log.disk import Disk
from ottla.testing.sim_loop import SimLoop


class _File:
    """The content of one file, and the part of it that is synced. The rest is in the page cache."""

    __slots__ = ("content", "synced")

    def __init__(self) -> None:
        self.content = bytearray()
        self.synced = b""


class SimPlatter:
    """The storage of one machine. Killing a process loses nothing that was written; power loss loses unsynced data."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.files: dict[str, _File] = {}
        self.directories: set[str] = {"/"}
        self.capacity_bytes: int | None = None
        self.failures: dict[str, list[int]] = {}
        self._journal: list[tuple[Any, ...]] = []
        self._durable_files: dict[str, _File] = {}
        self._durable_directories: set[str] = {"/"}
        self.locks: dict[str, SimDisk] = {}

    def disk(self) -> "SimDisk":
        """A new mount. Use one for each start of the machine, and `detach` it when the machine dies."""
        return SimDisk(self)

    def fail_next(self, operation: str, error: int = errno.EIO, times: int = 1) -> None:
        """The next `times` calls of `operation` (append, pread, sync, rename …) raise OSError(error)."""
        self.failures.setdefault(operation, []).extend([error] * times)

    def used_bytes(self) -> int:
        return sum(len(file.content) for file in self.files.values())

    def power_loss(self) -> None:
        """Keeps what was synced and a random part of the rest; the last write may be torn."""
        random = self.loop.random
        kept = random.randint(0, len(self._journal))
        for step in self._journal[:kept]:
            _apply(step, self._durable_files, self._durable_directories)
        self._journal.clear()
        self.files = dict(self._durable_files)
        self.directories = set(self._durable_directories)
        for file in self.files.values():
            synced, content = file.synced, bytes(file.content)
            if content == synced:
                continue
            if content.startswith(synced):
                lost = content[len(synced) :]
                survives = random.choice((0, random.randint(0, len(lost)), len(lost)))
                tail = bytearray(lost[:survives])
                if tail and random.random() < 0.5:
                    # A torn sector: the file grew, but its last bytes never arrived.
                    torn = random.randint(1, min(len(tail), 512))
                    tail[-torn:] = bytes(torn)
                file.content = bytearray(synced) + tail
            else:
                file.content = bytearray(random.choice((synced, content)))
            file.synced = bytes(file.content)

    def change(self, step: tuple[Any, ...]) -> None:
        _apply(step, self.files, self.directories)
        self._journal.append(step)

    def make_durable(self) -> None:
        # As on a journaling file system: changes of names become durable in the order they were made.
        for step in self._journal:
            _apply(step, self._durable_files, self._durable_directories)
        self._journal.clear()


def _apply(step: tuple[Any, ...], files: dict[str, _File], directories: set[str]) -> None:
    match step:
        case ("create", path, file):
            files[path] = file
        case ("remove", path):
            files.pop(path, None)
        case ("directory", path):
            directories.add(path)
        case ("remove directory", path):
            directories.discard(path)
        case ("rename", old, new):
            if old in files:
                files[new] = files.pop(old)
            for path in [path for path in files if path.startswith(old + "/")]:
                files[new + path[len(old) :]] = files.pop(path)
            for path in [path for path in directories if path == old or path.startswith(old + "/")]:
                directories.discard(path)
                directories.add(new + path[len(old) :])


class SimDisk(Disk):
    """One mount of a SimPlatter. After `detach`, when the machine has died, every operation fails."""

    def __init__(self, platter: SimPlatter) -> None:
        self.platter = platter
        self.attached = True
        self._handles: dict[int, _File] = {}
        self._next_handle = 3

    def detach(self) -> None:
        self.attached = False
        self._handles.clear()
        self.platter.locks = {path: disk for path, disk in self.platter.locks.items() if disk is not self}

    def _fail_if_asked(self, operation: str) -> None:
        planned = self.platter.failures.get(operation)
        if planned:
            raise OSError(planned.pop(0), f"simulated failure of {operation}")
        if not self.attached:
            raise OSError(errno.EIO, "the machine is off")

    def _file(self, handle: int) -> _File:
        file = self._handles.get(handle)
        if file is None:
            raise OSError(errno.EBADF, "bad file handle")
        return file

    # --- one file -----------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> int:
        self._fail_if_asked("open")
        file = self.platter.files.get(path)
        if file is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "No such file", path)
            self._require_directory(path)
            file = _File()
            self.platter.change(("create", path, file))
        handle = self._next_handle
        self._next_handle += 1
        self._handles[handle] = file
        return handle

    def close(self, handle: int) -> None:
        self._handles.pop(handle, None)

    def size(self, handle: int) -> int:
        return len(self._file(handle).content)

    def append(self, handle: int, buffers: Sequence[Any]) -> int:
        self._fail_if_asked("append")
        data = b"".join(bytes(buffer) for buffer in buffers)
        self._require_room(len(data))
        self._file(handle).content += data
        return len(data)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        self._fail_if_asked("pread")
        return bytes(self._file(handle).content[offset : offset + size])

    def pwrite(self, handle: int, data: Any, offset: int) -> None:
        self._fail_if_asked("pwrite")
        content = self._file(handle).content
        end = offset + len(data)
        self._require_room(max(0, end - len(content)))
        if len(content) < offset:
            content += bytes(offset - len(content))
        content[offset:end] = bytes(data)

    def truncate(self, handle: int, size: int) -> None:
        self._fail_if_asked("truncate")
        content = self._file(handle).content
        if size < len(content):
            del content[size:]
        else:
            content += bytes(size - len(content))

    def sync(self, handle: int) -> None:
        self._fail_if_asked("sync")
        file = self._file(handle)
        file.synced = bytes(file.content)
        self.platter.make_durable()

    @property
    def can_sync_all(self) -> bool:
        return True

    def sync_all(self, handle: int) -> None:
        self._fail_if_asked("sync_all")
        self.platter.make_durable()
        for file in self.platter.files.values():
            file.synced = bytes(file.content)

    def run_all(self, jobs: Sequence[Callable[[], None]]) -> list[OSError | None]:
        """Runs the jobs one after the other, so that a run depends on its seed alone."""
        errors: list[OSError | None] = []
        for job in jobs:
            try:
                job()
                errors.append(None)
            except OSError as error:
                errors.append(error)
        return errors

    # --- names --------------------------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        return path in self.platter.files or path in self.platter.directories

    def list(self, path: str) -> list[str]:
        if path not in self.platter.directories:
            raise FileNotFoundError(errno.ENOENT, "No such directory", path)
        prefix = path.rstrip("/") + "/"
        names = {
            name[len(prefix) :].split("/", 1)[0]
            for name in [*self.platter.files, *self.platter.directories]
            if name.startswith(prefix) and name != prefix
        }
        return sorted(names)

    def make_directory(self, path: str) -> bool:
        self._fail_if_asked("make_directory")
        if path in self.platter.directories:
            return False
        self._require_directory(path)
        self.platter.change(("directory", path))
        return True

    def make_directories(self, path: str) -> None:
        self._fail_if_asked("make_directories")
        parts = [part for part in path.split("/") if part]
        for depth in range(1, len(parts) + 1):
            directory = "/" + "/".join(parts[:depth])
            if directory not in self.platter.directories:
                self.platter.change(("directory", directory))

    def is_open_to_others(self, path: str) -> bool:
        return False

    def rename(self, old: str, new: str) -> None:
        self._fail_if_asked("rename")
        if not self.exists(old):
            raise FileNotFoundError(errno.ENOENT, "No such file", old)
        self.platter.change(("rename", old, new))

    def remove(self, path: str) -> None:
        self._fail_if_asked("remove")
        if path not in self.platter.files:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        self.platter.change(("remove", path))

    def remove_tree(self, path: str) -> None:
        self._fail_if_asked("remove_tree")
        for name in [n for n in self.platter.files if n.startswith(path + "/")]:
            self.platter.change(("remove", name))
        for name in [d for d in self.platter.directories if d == path or d.startswith(path + "/")]:
            self.platter.change(("remove directory", name))

    def file_size(self, path: str) -> int:
        self._fail_if_asked("file_size")
        file = self.platter.files.get(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        return len(file.content)

    def sync_directory(self, path: str) -> None:
        self._fail_if_asked("sync_directory")
        self.platter.make_durable()

    # --- whole files --------------------------------------------------------------------------------------

    def read_file(self, path: str) -> bytes:
        self._fail_if_asked("read_file")
        file = self.platter.files.get(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        return bytes(file.content)

    def write_file(self, path: str, data: bytes) -> None:
        self._fail_if_asked("write_file")
        self._require_directory(path)
        self._require_room(len(data))
        file = _File()
        file.content = bytearray(data)
        file.synced = bytes(data)
        self.platter.change(("create", path + ".tmp", file))
        self.platter.change(("rename", path + ".tmp", path))
        self.platter.make_durable()

    def lock(self, path: str) -> int:
        holder = self.platter.locks.get(path)
        if holder is not None and holder.attached:
            raise OttlaError(f"{path} is in use by another simulated machine")
        self.platter.locks[path] = self
        return self.open(path, create=True)

    def _require_directory(self, path: str) -> None:
        directory = path.rsplit("/", 1)[0] or "/"
        if directory not in self.platter.directories:
            raise FileNotFoundError(errno.ENOENT, "No such directory", directory)

    def _require_room(self, size_bytes: int) -> None:
        capacity = self.platter.capacity_bytes
        if capacity is not None and self.platter.used_bytes() + size_bytes > capacity:
            raise OSError(errno.ENOSPC, "No space left on device")
