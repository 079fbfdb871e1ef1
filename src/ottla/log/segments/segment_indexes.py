"""The indexes of one segment, in memory and on disk: loaded on first use, validated, rebuilt, saved.

The files are written when a segment is rolled or closed. Until then the indexes are in memory, and recovery rebuilds
everything after the recovery point. Index files are checked against the log before use.
"""

import logging
from collections.abc import Callable

from ottla.log.open_files import LogFile
from ottla.log.segments.index import CorruptIndex, OffsetIndex, TimeIndex, TimestampOffset
from ottla.log.segments.scan import WALK_CHUNK, scan_headers
from ottla.log.segments.transaction_index import AbortedTransaction, decode_entries, encode_entries
from ottla.protocol.records.batch_layout import LENGTH_END
from ottla.protocol.records.record_batch import NO_TIMESTAMP, CorruptBatch

log = logging.getLogger("ottla.log")

UNINDEXED_BYTES = 64 * 1024
"""Scanning a segment this small is faster than opening its index files."""


class SegmentIndexes:
    """Offset index, time index and aborted transactions of one segment; `path` returns its file paths."""

    __slots__ = (
        "_saved_offsets",
        "_saved_times",
        "_saved_transactions",
        "_wrote_transactions",
        "base_offset",
        "bytes_since_entry",
        "disk",
        "entries",
        "file",
        "interval_bytes",
        "max_timestamp",
        "offset_of_max_timestamp",
        "offsets",
        "path",
        "times",
        "transactions",
    )

    def __init__(self, base_offset: int, interval_bytes: int, file: LogFile, path: Callable[[str], str]) -> None:
        self.base_offset = base_offset
        self.interval_bytes = interval_bytes
        self.file = file
        self.path = path
        self.disk = file.disk
        self.offsets: OffsetIndex | None = None
        self.times: TimeIndex | None = None
        self.transactions: list[AbortedTransaction] | None = None
        self.max_timestamp: int | None = None
        """The largest timestamp of any batch, -1 if none has one; None if not known yet."""
        self.offset_of_max_timestamp = base_offset
        self.bytes_since_entry = 0
        self.entries = 0
        """The length of the offset index, if it was loaded."""
        # How many entries are in the files; -1 means that the whole file must be rewritten.
        self._saved_offsets = self._saved_times = self._saved_transactions = 0
        self._wrote_transactions = False

    def begin(self) -> None:
        """Starts with empty indexes and ignores the files."""
        self.offsets, self.times = OffsetIndex(), TimeIndex()
        self.transactions = []
        self._saved_offsets = self._saved_times = self._saved_transactions = -1
        self.max_timestamp, self.offset_of_max_timestamp = NO_TIMESTAMP, self.base_offset
        self.bytes_since_entry = self.entries = 0

    def load(self, size: int) -> OffsetIndex:
        """Loads the offset and time index: from their files if they are valid, else from the log."""
        try:
            offset_index = OffsetIndex.from_bytes(self.disk.read_file(self.path(".index")), size)
            time_index = TimeIndex.from_bytes(self.disk.read_file(self.path(".timeindex")))
            last = time_index.last
            if size and not self._is_latest(offset_index, last, size):
                raise CorruptIndex("the largest timestamp does not match its batch")
        except (CorruptIndex, OSError) as error:
            if size <= UNINDEXED_BYTES and isinstance(error, FileNotFoundError):
                return self.rebuild(size)
            log.warning("%s: rebuilding the indexes: %s", self.path(".log"), error)
            return self.rebuild_and_save(size)
        self.offsets, self.times = offset_index, time_index
        self._saved_offsets, self._saved_times = len(offset_index), len(time_index)
        self.entries = len(offset_index)
        self.bytes_since_entry = size - (offset_index.positions[-1] if offset_index else 0)
        if self.max_timestamp is None:
            self.max_timestamp = NO_TIMESTAMP if last is None else last.timestamp
            self.offset_of_max_timestamp = self.base_offset + (0 if last is None else last.offset)
        return offset_index

    def _is_latest(self, offset_index: OffsetIndex, last: TimestampOffset | None, size: int) -> bool:
        """Whether the last entry of the time index matches its batch. A corrupt log counts as a match."""
        if last is None:
            return False
        entry = offset_index.entry_at_or_before_offset(last.offset)
        start = offset_index.positions[entry] if entry >= 0 else 0
        wanted = self.base_offset + last.offset
        try:
            for _, header in scan_headers(self.disk, self.file.handle(), start, size, WALK_CHUNK):
                if header.last_offset >= wanted:
                    return header.last_offset == wanted and header.max_timestamp == last.timestamp
        except CorruptBatch:
            return True
        return False

    def are_saved(self) -> bool:
        """Whether the files contain everything in memory, including the largest timestamp."""
        if self.offsets is None or self.times is None:
            return True
        last = self.times.last
        return (
            self._saved_offsets == len(self.offsets)
            and self._saved_times == len(self.times)
            and self.max_timestamp == (NO_TIMESTAMP if last is None else last.timestamp)
        )

    def unload(self) -> None:
        """Frees the memory when the file is closed, unless something is not saved yet."""
        if self.offsets is not None and self.are_saved():
            self.offsets = self.times = None

    def rebuild_and_save(self, size: int) -> OffsetIndex:
        index = self.rebuild(size)
        try:
            self.save()
        except OSError:
            pass  # The indexes are in memory; a full disk must not prevent reads.
        return index

    def rebuild(self, size: int) -> OffsetIndex:
        """Rebuilds the indexes from the log's batch headers, up to the first corrupt one."""
        self.offsets, self.times = OffsetIndex(), TimeIndex()
        self._saved_offsets = self._saved_times = -1
        self.max_timestamp, self.offset_of_max_timestamp = NO_TIMESTAMP, self.base_offset
        self.bytes_since_entry = self.entries = 0
        try:
            for position, header in scan_headers(self.disk, self.file.handle(), 0, size):
                self.note(position, header.batch_length + LENGTH_END, header.last_offset, header.max_timestamp)
        except CorruptBatch as error:
            log.error("%s: corrupt batch: %s", self.path(".log"), error.detail)
        self.complete_times()
        return self.offsets

    def note(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """Records a batch at the end: an index entry every index.interval.bytes, and the largest timestamp."""
        if max_timestamp > self.max_timestamp:  # type: ignore[operator]
            self.max_timestamp, self.offset_of_max_timestamp = max_timestamp, last_offset
        if self.bytes_since_entry > self.interval_bytes:
            self.offsets.append(last_offset - self.base_offset, position)  # type: ignore[union-attr]
            self.complete_times()
            self.bytes_since_entry = 0
            self.entries += 1
        self.bytes_since_entry += size

    def complete_times(self) -> None:
        """Adds the largest timestamp, which must be the last entry of a finished time index."""
        if self.max_timestamp is not None and self.max_timestamp >= 0 and self.times is not None:
            self.times.append(self.max_timestamp, self.offset_of_max_timestamp - self.base_offset)

    def needs_files(self, size: int) -> bool:
        """Whether index files are worth writing: the segment is large, or there are old files to update."""
        return size > UNINDEXED_BYTES or self.disk.exists(self.path(".index"))

    def save(self) -> list[str]:
        """Writes unsaved entries to the index files and returns the files' paths. Does not sync."""
        self.complete_times()
        paths = [self.path(".index"), self.path(".timeindex")]
        # An index that is not in memory was saved, or was never loaded.
        offsets, times = self.offsets, self.times
        if offsets is not None and self._saved_offsets != len(offsets):
            self._append_to(paths[0], offsets.to_bytes(max(0, self._saved_offsets)), self._saved_offsets)
            self._saved_offsets = len(offsets)
        if times is not None and self._saved_times != len(times):
            self._append_to(paths[1], times.to_bytes(max(0, self._saved_times)), self._saved_times)
            self._saved_times = len(times)
        if path := self.save_transactions():
            paths.append(path)
        return [path for path in paths if self.disk.exists(path)]

    def save_transactions(self, *, rewrite: bool = False) -> str | None:
        """Writes unsaved aborted transactions, or all with `rewrite`. Returns the path if it may have to be synced."""
        entries, path = self.transactions, self.path(".txnindex")
        if entries is None:
            return path if self.disk.exists(path) else None
        if rewrite:
            self._saved_transactions = -1
        elif not entries and self._saved_transactions < 0 and not self.disk.exists(path):
            self._saved_transactions = 0
        if self._saved_transactions != len(entries):
            self._append_to(path, encode_entries(entries[max(0, self._saved_transactions) :]), self._saved_transactions)
            self._saved_transactions = len(entries)
            self._wrote_transactions = True
        # An empty file is synced too: otherwise the entries of truncated markers come back after a power failure.
        return path if self._wrote_transactions else None

    def _append_to(self, path: str, data: bytes, saved: int) -> None:
        handle = self.disk.open(path, create=True)
        try:
            if saved < 0:
                self.disk.truncate(handle, 0)
            if data:
                self.disk.append(handle, (data,))
        finally:
            self.disk.close(handle)

    def aborted(self) -> list[AbortedTransaction]:
        """The transactions whose ABORT marker is in this segment."""
        if self.transactions is None:
            path = self.path(".txnindex")
            self.transactions = decode_entries(self.disk.read_file(path)) if self.disk.exists(path) else []
            self._saved_transactions = len(self.transactions)
        return self.transactions

    def truncate(self, position: int, next_offset: int) -> None:
        """The log was truncated at `position`; the next batch has offset `next_offset`."""
        assert self.offsets is not None
        assert self.times is not None
        self.offsets.truncate(position)
        self.entries = len(self.offsets)
        self.times.truncate(next_offset - self.base_offset)
        self.transactions = [entry for entry in self.aborted() if entry.last_offset < next_offset]
        self._saved_offsets = self._saved_times = self._saved_transactions = -1
        self.bytes_since_entry = position - (self.offsets.positions[-1] if self.offsets else 0)
        # The time index can lag behind the log by one interval: scan the rest.
        self.max_timestamp, self.offset_of_max_timestamp = NO_TIMESTAMP, self.base_offset
        start = 0
        if (last := self.times.last) is not None:
            self.max_timestamp, self.offset_of_max_timestamp = last.timestamp, self.base_offset + last.offset
            entry = self.offsets.entry_at_or_before_offset(last.offset)
            start = self.offsets.positions[entry] if entry >= 0 else 0
        for _, header in scan_headers(self.disk, self.file.handle(), start, position):
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp, self.offset_of_max_timestamp = header.max_timestamp, header.last_offset
