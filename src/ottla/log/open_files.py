"""Opens files on first use and limits how many are open: a thousand idle partitions use no file descriptors."""

from collections import OrderedDict
from collections.abc import Callable

from ottla.log.disk import Disk

DEFAULT_LIMIT = 256


class OpenFiles:
    """The files of many logs, at most `limit` of them open at once, plus those that are held.

    Eviction is the CLOCK algorithm: a file used since its last check is skipped once. Held files are not in the
    circle, so that thousands of them cost an eviction nothing.
    """

    def __init__(self, disk: Disk, limit: int = DEFAULT_LIMIT) -> None:
        self.disk = disk
        self.limit = limit
        self._open: OrderedDict[LogFile, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, file: "LogFile") -> None:
        """Registers a file that was just opened or let go, and closes others if there are too many."""
        self._make_room()
        self._open[file] = None

    def _make_room(self) -> None:
        for _ in range(2 * len(self._open)):
            if len(self._open) < self.limit:
                return
            file, _ = self._open.popitem(last=False)
            if file.recently_used:
                file.recently_used = False
                self._open[file] = None
            else:
                file.release()

    def forget(self, file: "LogFile") -> None:
        """Unregisters a file that is being closed or held."""
        self._open.pop(file, None)


class LogFile:
    """One file by path; `handle()` opens it if it is not open."""

    __slots__ = ("_close_when_let_go", "_files", "_handle", "holds", "on_release", "path", "recently_used")

    def __init__(self, files: OpenFiles, path: str, on_release: Callable[[], None] | None = None) -> None:
        self.path = path
        self.holds = 0
        """How many flushes in other threads currently need the handle to stay open."""
        self.recently_used = False
        self.on_release = on_release
        self._files = files
        self._handle: int | None = None
        self._close_when_let_go = False

    @property
    def disk(self) -> Disk:
        return self._files.disk

    @property
    def is_open(self) -> bool:
        return self._handle is not None

    def handle(self, *, create: bool = False) -> int:
        self.recently_used = True
        handle = self._handle
        if handle is None:
            handle = self._files.disk.open(self.path, create=create)
            self._files.admit(self)
            self._handle = handle
        return handle

    def hold(self) -> int:
        """The handle, kept open until `let_go`: a closed descriptor could be reused, and another file synced."""
        handle = self.handle()
        if not self.holds:
            self._files.forget(self)
        self.holds += 1
        return handle

    def let_go(self) -> None:
        self.holds -= 1
        if self.holds:
            return
        if self._close_when_let_go:
            self._close_when_let_go = False
            self.close()
        elif self._handle is not None:
            self._files.admit(self)

    def close(self) -> None:
        """Closes the file, now or when the last hold ends."""
        if self.holds:
            self._close_when_let_go = True
        elif self._handle is not None:
            self._files.forget(self)
            self.release()

    def release(self) -> None:
        """Closes the handle; `handle()` opens the file again."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._files.disk.close(handle)
        if self.on_release is not None:
            self.on_release()

    def __del__(self) -> None:
        # A log that is dropped without being closed, for example after a failed start, must not leak descriptors.
        handle = getattr(self, "_handle", None)
        if handle is not None:
            self._files.disk.close(handle)
