"""The producer snapshot files of one log: one per segment start, and the latest."""

import logging
from collections.abc import Callable, Collection

from ottla.log.disk import Disk
from ottla.log.producers.producer_snapshot import CorruptSnapshot, decode_snapshot, encode_snapshot
from ottla.log.producers.producer_state import ProducerStateManager

log = logging.getLogger("ottla.log")

SUFFIX = ".snapshot"


class SnapshotFiles:
    """Each file is named after an offset and holds the producer state before that offset."""

    __slots__ = ("directory", "disk")

    def __init__(self, disk: Disk, directory: str) -> None:
        self.disk = disk
        self.directory = directory

    def path(self, offset: int) -> str:
        return f"{self.directory}/{offset:020d}{SUFFIX}"

    def offsets(self) -> list[int]:
        return sorted(int(name[:20]) for name in self.disk.list(self.directory) if name.endswith(SUFFIX))

    def write(self, offset: int, producers: ProducerStateManager) -> None:
        """Writes a snapshot. Not synced: the checksum detects a snapshot that did not survive a crash."""
        self.disk.overwrite_file(self.path(offset), encode_snapshot(producers.entries()))

    def load_latest(
        self, at_most: int, monotonic_ms: int, offsets: list[int] | None = None
    ) -> tuple[int, ProducerStateManager]:
        """The latest valid snapshot up to offset `at_most`, as (offset, state); (-1, empty state) if there is none."""
        producers = ProducerStateManager()
        for offset in reversed(self.offsets() if offsets is None else offsets):
            if offset <= at_most:
                try:
                    producers.load(decode_snapshot(self.disk.read_file(self.path(offset)), monotonic_ms))
                    return offset, producers
                except (CorruptSnapshot, OSError) as error:
                    log.warning("%s: ignoring the unusable snapshot: %s", self.path(offset), error)
        return -1, producers

    def ensure_synced(self, offset: int, monotonic_ms: int, state_at: Callable[[int], ProducerStateManager]) -> None:
        """Ensures a valid, synced snapshot at `offset`, before the segments it summarises are deleted."""
        if not self.is_valid(offset, monotonic_ms):
            self.write(offset, state_at(offset))
        self.disk.sync_file(self.path(offset))
        self.disk.sync_directory(self.directory)

    def is_valid(self, offset: int, monotonic_ms: int) -> bool:
        try:
            decode_snapshot(self.disk.read_file(self.path(offset)), monotonic_ms)
            return True
        except (CorruptSnapshot, OSError):
            return False

    def end_transactions(self, offsets: Collection[int], monotonic_ms: int) -> None:
        """Marks the open transactions of these snapshots as ended, for segments that were compacted.

        Compaction stops at the first open transaction, so all of them have ended. It may remove their markers: a
        replay from such a snapshot would never see them end.
        """
        for offset in offsets:
            try:
                entries = decode_snapshot(self.disk.read_file(self.path(offset)), monotonic_ms)
            except (CorruptSnapshot, OSError):
                continue
            if any(entry.transaction_first_offset is not None for entry in entries):
                for entry in entries:
                    entry.transaction_first_offset = None
                self.disk.write_file(self.path(offset), encode_snapshot(entries))

    def prune(self, segment_bases: Collection[int]) -> None:
        """Keeps the snapshots at segment starts, which truncation may need, and the latest; removes the others."""
        offsets = self.offsets()
        for offset in offsets[:-1]:
            if offset not in segment_bases:
                self.disk.remove(self.path(offset))

    def remove_above(self, offset: int) -> None:
        """Removes snapshots after `offset`, for a log truncated there."""
        for each in self.offsets():
            if each > offset:
                self.disk.remove(self.path(each))
