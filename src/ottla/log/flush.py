"""Group commit: what has to reach stable storage, handed to a thread that waits for the disk."""

from collections.abc import Iterable
from typing import NamedTuple

from ottla.log.disk import Disk
from ottla.log.open_files import LogFile
from ottla.log.segment import Segment


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
    sizes: tuple[tuple[Segment, int], ...]
    truncations: int

    def sync(self, disk: Disk) -> None:
        """Blocks until the disk has it all. Any thread. OSError: the disk may have lost what it had accepted."""
        for handle in self.handles:
            disk.sync(handle)
        if self.directory is not None:
            disk.sync_directory(self.directory)


class UnsyncedSegments:
    """The segments of one log that hold bytes no flush has covered, oldest first."""

    __slots__ = ("_segments", "new_names", "truncations")

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self.new_names = False
        self.truncations = 0
        """Grows when the log is cut: a flush from before says nothing about what was written since."""

    def __bool__(self) -> bool:
        return bool(self._segments)

    def add(self, segment: Segment) -> None:
        segment.unsynced = True
        self._segments.append(segment)

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
            for segment in self._segments:
                files.append(segment.file)
                handles.append(segment.file.hold())
                for path in self._index_paths(segment):
                    file = LogFile(segment.files, path)
                    handles.append(file.hold())
                    file.close()
                    files.append(file)
        except OSError:
            for file in files[: len(handles)]:
                file.let_go()
            raise
        named, self.new_names = self.new_names, False
        sizes = tuple((segment, segment.size) for segment in self._segments)
        return FlushTicket(offset, tuple(handles), directory if named else None, tuple(files), sizes, self.truncations)

    @staticmethod
    def _index_paths(segment: Segment) -> list[str]:
        if segment.unsynced_indexes:
            return segment.save_indexes()
        path = segment.save_transaction_index()
        return [path] if path else []

    def settle(self, ticket: FlushTicket, *, succeeded: bool) -> None:
        """The flush ended: lets the handles go, and forgets what it covered."""
        for file in ticket.files:
            file.let_go()
        if not succeeded or ticket.truncations != self.truncations:
            self.new_names = self.new_names or ticket.directory is not None
            return
        for segment, size in ticket.sizes:
            if segment.size == size and segment in self._segments:
                self._segments.remove(segment)
                segment.unsynced = segment.unsynced_indexes = False
