"""Group commit: what has to reach stable storage, handed to a thread that waits for the disk."""

from collections.abc import Iterable
from typing import NamedTuple

from ottla.log.disk import Disk
from ottla.log.open_files import LogFile, OpenFiles
from ottla.log.segments.segment import Segment


class FlushTicket(NamedTuple):
    """Everything below `offset` is on stable storage once `sync` has returned.

    Handles stay open until the log is told how it ended (`flushed` or `flush_failed`), so they are safe to use
    from another thread.
    """

    offset: int
    handles: tuple[int, ...]
    directory: str | None
    """Where names were made that have to survive too; None if none were."""
    files: tuple[LogFile, ...]
    snapshots: tuple[str, ...]
    sizes: tuple[tuple[Segment, int], ...]
    truncations: int

    def sync(self, disk: Disk) -> None:
        """Blocks until the disk has it all. Any thread. OSError: the disk may have lost what it had accepted."""
        for handle in self.handles:
            disk.sync(handle)
        if self.directory is not None:
            disk.sync_directory(self.directory)


class Unsynced:
    """What of one log no flush has covered: segments, oldest first, and producer snapshots."""

    __slots__ = ("_files", "_segments", "_snapshots", "new_names", "truncations")

    def __init__(self, files: OpenFiles) -> None:
        self._files = files
        self._segments: list[Segment] = []
        self._snapshots: list[str] = []
        self.new_names = False
        self.truncations = 0
        """Grows when the log is cut: a flush from before says nothing about what was written since."""

    def __bool__(self) -> bool:
        return bool(self._segments) or bool(self._snapshots)

    def add(self, segment: Segment) -> None:
        segment.unsynced = True
        self._segments.append(segment)

    def add_snapshot(self, path: str) -> None:
        """Once the segments before it are deleted, nothing else knows what a snapshot says: it is synced too."""
        self._snapshots.append(path)

    def cut(self, remaining: Iterable[Segment]) -> None:
        """The log was cut: a flush under way no longer says anything about its end."""
        self.truncations += 1
        self.retain(remaining)

    def retain(self, remaining: Iterable[Segment]) -> None:
        """Segments that were deleted, or replaced by ones already synced, need no flush."""
        kept = set(remaining)
        self._segments = [segment for segment in self._segments if segment in kept]

    def ticket(self, offset: int, directory: str) -> FlushTicket:
        """OSError if the aborted transactions cannot be written: without them a flush would promise too much."""
        files: list[LogFile] = []
        handles: list[int] = []
        try:
            paths = []
            for segment in self._segments:
                paths += self._index_paths(segment)
                handles.append(segment.file.hold())
                files.append(segment.file)
            self._snapshots = [path for path in self._snapshots if self._files.disk.exists(path)]
            for path in paths + self._snapshots:
                file = LogFile(self._files, path)
                handles.append(file.hold())
                file.close()
                files.append(file)
        except OSError:
            for file in files:
                file.let_go()
            raise
        named, self.new_names = self.new_names, False
        return FlushTicket(
            offset,
            tuple(handles),
            directory if named else None,
            tuple(files),
            tuple(self._snapshots),
            tuple((segment, segment.size) for segment in self._segments),
            self.truncations,
        )

    @staticmethod
    def _index_paths(segment: Segment) -> list[str]:
        if segment.unsynced_indexes:
            return segment.indexes.save()
        path = segment.indexes.save_transactions()
        return [path] if path else []

    def settle(self, ticket: FlushTicket, *, succeeded: bool) -> None:
        """The flush ended: lets the handles go, and forgets what it covered."""
        for file in ticket.files:
            file.let_go()
        if not succeeded or ticket.truncations != self.truncations:
            self.new_names = self.new_names or ticket.directory is not None
            return
        self._snapshots = [path for path in self._snapshots if path not in ticket.snapshots]
        for segment, size in ticket.sizes:
            if segment.size == size and segment in self._segments:
                self._segments.remove(segment)
                segment.unsynced = segment.unsynced_indexes = False
