"""Group commit: tracks what has to reach stable storage, and hands it to a thread that waits for the disk."""

from collections.abc import Iterable
from typing import NamedTuple

from ottla.log.disk import Disk
from ottla.log.open_files import LogFile, OpenFiles
from ottla.log.segments.segment import Segment


class FlushTicket(NamedTuple):
    """Everything below `offset` is on stable storage once `sync` has returned.

    Handles stay open until `flushed` or `flush_failed` is called, so they are safe to use from another thread.
    """

    offset: int
    handles: tuple[int, ...]
    directory: str | None
    """A directory to sync because files were created in it; None if none were."""
    files: tuple[LogFile, ...]
    snapshots: tuple[str, ...]
    sizes: tuple[tuple[Segment, int], ...]
    truncations: int

    def sync(self, disk: Disk) -> None:
        """Blocks until everything is synced. Any thread. OSError: accepted writes may be lost."""
        for handle in self.handles:
            disk.sync(handle)
        if self.directory is not None:
            disk.sync_directory(self.directory)


class Unsynced:
    """The unsynced parts of one log: segments, oldest first, and producer snapshots."""

    __slots__ = ("_files", "_segments", "_snapshots", "new_names", "truncations")

    def __init__(self, files: OpenFiles) -> None:
        self._files = files
        self._segments: list[Segment] = []
        self._snapshots: list[str] = []
        self.new_names = False
        self.truncations = 0
        """Counts truncations: a flush from before a truncation does not cover what was written after it."""

    def __bool__(self) -> bool:
        return bool(self._segments) or bool(self._snapshots)

    def add(self, segment: Segment) -> None:
        segment.unsynced = True
        self._segments.append(segment)

    def add_snapshot(self, path: str) -> None:
        """Syncs a snapshot too: after the segments before it are deleted, its content exists nowhere else."""
        self._snapshots.append(path)

    def truncated(self, remaining: Iterable[Segment]) -> None:
        """The log was truncated: a flush in progress no longer covers its end."""
        self.truncations += 1
        self.retain(remaining)

    def retain(self, remaining: Iterable[Segment]) -> None:
        """Drops segments that were deleted, or replaced by already synced ones."""
        kept = set(remaining)
        self._segments = [segment for segment in self._segments if segment in kept]

    def ticket(self, offset: int, directory: str, *, hold: bool = True) -> FlushTicket:
        """What to sync now. OSError if the aborted transactions cannot be written: a flush must cover them.

        Without `hold` no file is opened: the caller syncs the whole file system.
        """
        files: list[LogFile] = []
        handles: list[int] = []
        try:
            paths = []
            for segment in self._segments:
                paths += self._index_paths(segment)
                if hold:
                    handles.append(segment.file.hold())
                    files.append(segment.file)
            self._snapshots = [path for path in self._snapshots if self._files.disk.exists(path)]
            for path in paths + self._snapshots if hold else ():
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
        """The flush ended: releases the handles and drops what it covered."""
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
