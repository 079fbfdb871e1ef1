"""One segment: a file of batches with its indexes. Finds, reads, appends and truncates."""

import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ottla.errors import ErrorCode, KafkaError
from ottla.log.open_files import LogFile, OpenFiles
from ottla.log.segments.file_records import FileRecords
from ottla.log.segments.index import OffsetIndex
from ottla.log.segments.scan import WALK_CHUNK, scan_batches, scan_headers
from ottla.log.segments.segment_indexes import SegmentIndexes
from ottla.log.segments.transaction_index import AbortedTransaction
from ottla.protocol.records.batch_inspection import Stamp
from ottla.protocol.records.batch_layout import HEADER_SIZE, LENGTH_END, MAGIC
from ottla.protocol.records.record_batch import NO_TIMESTAMP, BatchHeader, CorruptBatch, read_header
from ottla.types import INT32_MAX, INT64_MAX

log = logging.getLogger("ottla.log")

SUFFIXES = (".index", ".timeindex", ".txnindex", ".log")
"""The files of a segment. The .log file is last: renaming it is the step that commits the rename of a segment."""


# base_offset, batch_length, magic, last_offset_delta: enough to step from one batch to the next.
_STEP = struct.Struct(">qi4xb6xi")
_HINTS_MAX = 16


def file_name(base_offset: int, suffix: str = "") -> str:
    """Kafka's name: twenty digits, so that names sort as offsets do.

    >>> file_name(42, ".log")
    '00000000000000000042.log'
    """
    return f"{base_offset:020d}{suffix}"


Look = Callable[[bytes, BatchHeader, int], Stamp | None]
"""Finds a record in one batch, at an offset or after it."""


class Segment:
    """The batches from `base_offset` to the next segment's, in a file of at most 2 GiB."""

    __slots__ = (
        "_hints",
        "base_offset",
        "begun_monotonic_ms",
        "created_ms",
        "directory",
        "disk",
        "file",
        "files",
        "first_timestamp",
        "generation",
        "indexes",
        "size",
        "suffix",
        "unsynced",
        "unsynced_indexes",
    )

    def __init__(
        self,
        directory: str,
        base_offset: int,
        *,
        files: OpenFiles,
        size: int,
        index_interval_bytes: int,
        suffix: str = "",
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.files = files
        self.disk = files.disk
        self.size = size
        self.suffix = suffix
        self.created_ms: int | None = None
        """When the first batch was written, in wall time; None if that was before the log was opened."""
        self.begun_monotonic_ms: int | None = None
        """The same in monotonic time; estimated on first use after a restart."""
        self.first_timestamp: int | None = None
        """The first batch's max timestamp; None if not known yet."""
        self.file = LogFile(files, self.path(".log"), self._unload)
        self.unsynced = False
        """Whether bytes were appended that are not flushed yet."""
        self.unsynced_indexes = False
        """Whether the finished segment's index files are not flushed yet."""
        self.indexes = SegmentIndexes(base_offset, index_interval_bytes, self.file, self.path)
        self.generation = 0
        """Changes when bytes that a FileRecords refers to may be gone: truncated, closed permanently, or deleted."""
        self._hints: dict[int, int] = {}

    @classmethod
    def create(cls, directory: str, base_offset: int, *, may_exist: bool = True, **details: Any) -> "Segment":
        """A new, empty segment. Replaces any earlier files of the same name, if there may be any."""
        segment = cls(directory, base_offset, size=0, **details)
        for suffix in SUFFIXES[:-1] if may_exist else ():
            if segment.disk.exists(segment.path(suffix)):
                segment.disk.remove(segment.path(suffix))
        handle = segment.file.handle(create=True)
        if may_exist and segment.disk.size(handle):
            segment.disk.truncate(handle, 0)
        segment.indexes.begin()
        return segment

    def __repr__(self) -> str:
        return f"Segment({self.path('.log')}, {self.size} bytes)"

    def path(self, suffix: str) -> str:
        return f"{self.directory}/{self.base_offset:020d}{suffix}{self.suffix}"

    def _unload(self) -> None:
        self.indexes.unload()
        self._hints.clear()

    def aborted(self) -> list[AbortedTransaction]:
        """The transactions whose ABORT marker is in this segment."""
        return self.indexes.aborted()

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of any batch, -1 if none has one."""
        if self.indexes.max_timestamp is None:
            was_open = self.file.is_open
            self.indexes.load(self.size)
            self._close_unless(was_open)
        return NO_TIMESTAMP if self.indexes.max_timestamp is None else self.indexes.max_timestamp

    # --- appending ----------------------------------------------------------------------------------------

    def begin(self, now: int, monotonic_ms: int, max_timestamp: int) -> None:
        """The first batch is about to be written: the segment's age counts from now."""
        self.created_ms = now
        self.begun_monotonic_ms = monotonic_ms
        self.first_timestamp = max_timestamp

    def find_first_timestamp(self) -> int:
        """The first batch's max timestamp; -1 if it has none, or if there is no batch."""
        if self.first_timestamp is None:
            was_open = self.file.is_open
            self.first_timestamp = self.header_at(0).max_timestamp if self.size else NO_TIMESTAMP
            self._close_unless(was_open)
        return self.first_timestamp

    def _close_unless(self, was_open: bool) -> None:
        """Closes a file that background checks opened: a thousand idle segments must not stay open."""
        if not was_open:
            self.file.close()

    def begun_at(self, now: int, monotonic_ms: int) -> int:
        """When the first batch was written, in monotonic time; estimated once from its timestamp after a restart."""
        if self.begun_monotonic_ms is None:
            first = self.find_first_timestamp()
            self.begun_monotonic_ms = monotonic_ms - (max(0, now - first) if first >= 0 else 0)
        return self.begun_monotonic_ms

    def append(self, buffers: Sequence[Any], size: int, last_offset: int, max_timestamp: int) -> None:
        """Writes one batch at the end. After an OSError, call `heal` to remove what may have been written."""
        indexes = self.indexes
        if indexes.offsets is None:
            indexes.load(self.size)
        self.disk.append(self.file.handle(), buffers)
        indexes.note(self.size, size, last_offset, max_timestamp)
        self.size += size

    def heal(self) -> None:
        """Truncates what a failed append may have left. OSError if that fails too."""
        handle = self.file.handle()
        if self.disk.size(handle) != self.size:
            self.disk.truncate(handle, self.size)

    # --- finding and reading ------------------------------------------------------------------------------

    def find_position(self, offset: int) -> int | None:
        """The position of the first batch that ends at or after `offset`; None if there is none."""
        position = self._hints.get(offset)
        if position is not None:
            return position if position < self.size else None
        return self._search(offset)[0]

    def _offset_index(self) -> OffsetIndex:
        offsets = self.indexes.offsets
        return self.indexes.load(self.size) if offsets is None else offsets

    def _search(self, offset: int) -> tuple[int | None, int]:
        """The result of find_position and that batch's base offset, from the index and a short scan."""
        index = self._offset_index()
        relative = offset - self.base_offset
        entry = index.entry_at_or_before_offset(relative if relative < INT32_MAX else INT32_MAX)
        position, expected = 0, -1
        if entry >= 0:
            position, expected = index.positions[entry], index.offsets[entry] + self.base_offset
        handle, size = self.file.handle(), self.size
        chunk, chunk_start = b"", position
        while position < size:
            at = position - chunk_start
            if at + _STEP.size > len(chunk):
                chunk_start, at = position, 0
                chunk = self.disk.pread(handle, min(WALK_CHUNK, size - position), position)
                if len(chunk) < _STEP.size:
                    raise self._damaged(position)
            base_offset, length, magic, delta = _STEP.unpack_from(chunk, at)
            if expected >= 0:
                if magic != MAGIC or base_offset + delta != expected:
                    self._rebuild_wrong_index(position)
                    return self._search(offset)
                expected = -1
            if magic != MAGIC or length < HEADER_SIZE - LENGTH_END or base_offset < self.base_offset:
                raise self._damaged(position)
            if base_offset + delta >= offset:
                if base_offset == offset:
                    self._hint(offset, position)
                return position, base_offset
            position += LENGTH_END + length
        return None, -1

    def _rebuild_wrong_index(self, position: int) -> None:
        """An index entry does not match its batch: rebuilds the index, or raises CorruptBatch if the log is corrupt."""
        try:
            for at, _ in scan_headers(self.disk, self.file.handle(), 0, self.size):
                if at >= position:
                    break
        except CorruptBatch:
            raise self._damaged(position) from None
        log.warning("%s: rebuilding the index, wrong entry for position %d", self.path(".index"), position)
        self._hints.clear()
        self.indexes.rebuild_and_save(self.size)

    def _damaged(self, position: int) -> CorruptBatch:
        return CorruptBatch(f"{self.path('.log')}: corrupt at position {position}")

    def _hint(self, offset: int, position: int) -> None:
        """Caches the position of the first batch at or after `offset`, where a reader will continue."""
        if len(self._hints) >= _HINTS_MAX:
            self._hints.clear()
        self._hints[offset] = position

    def end_position(self, upper_bound: int) -> int:
        """The position after the last batch with a base offset below `upper_bound`."""
        position = self._hints.get(upper_bound)
        if position is not None:
            return position
        found, base_offset = self._search(upper_bound)
        if found is None:
            return self.size
        if base_offset >= upper_bound:
            self._hint(upper_bound, found)
            return found
        return found + self.header_at(found).size_bytes

    def header_at(self, position: int) -> BatchHeader:
        return read_header(self.disk.pread(self.file.handle(), HEADER_SIZE, position))

    def _whole_batches(self, start: int, limit: int) -> tuple[int, int]:
        """The end position of the last batch that starts from `start` on and ends by `limit`, and its next offset."""
        index = self._offset_index()
        entry = index.entry_at_or_before_position(limit)
        position, expected = start, -1
        if entry >= 0 and index.positions[entry] > start:
            position, expected = index.positions[entry], index.offsets[entry] + self.base_offset
        handle, next_offset = self.file.handle(), -1
        chunk, chunk_start = b"", position
        while position < limit:
            at = position - chunk_start
            if at + _STEP.size > len(chunk):
                chunk_start, at = position, 0
                chunk = self.disk.pread(handle, min(WALK_CHUNK, self.size - position), position)
                if len(chunk) < _STEP.size:
                    raise self._damaged(position)
            base_offset, length, magic, delta = _STEP.unpack_from(chunk, at)
            if expected >= 0:
                if magic != MAGIC or base_offset + delta != expected:
                    self._rebuild_wrong_index(position)
                    return self._whole_batches(start, limit)
                expected = -1
            if magic != MAGIC or length < HEADER_SIZE - LENGTH_END:
                raise self._damaged(position)
            if position + LENGTH_END + length > limit:
                # Not the next offset of the previous batch: skip offsets removed by compaction as well.
                return position, base_offset
            position += LENGTH_END + length
            next_offset = base_offset + delta + 1
        return position, next_offset

    def read(
        self, offset: int, max_bytes: int, end: int, end_offset: int, minimum_one_batch: bool, inline_bytes: int
    ) -> bytes | FileRecords | None:
        """Complete batches from the one that contains `offset`, at most `max_bytes`; None if there is none.

        Up to position `end`, where the batches at or after `end_offset` start, or will start. More than `inline_bytes`
        are left in the file.
        """
        start = self.find_position(offset)
        if start is None or start >= end:
            return None
        stop, next_offset = end, end_offset
        if start + max_bytes < end:
            stop, next_offset = self._whole_batches(start, start + max_bytes)
            if stop == start:
                if not minimum_one_batch:
                    return b""
                header = self.header_at(start)
                stop, next_offset = min(start + header.size_bytes, end), header.next_offset
        self._hint(next_offset, stop)
        size = stop - start
        wanted = size if size <= inline_bytes else _STEP.size
        data = self.disk.pread(self.file.handle(), wanted, start)
        if len(data) != wanted:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.path('.log')}: read {len(data)} of {wanted} bytes")
        base_offset, length, magic, delta = _STEP.unpack_from(data)
        if magic != MAGIC or base_offset + delta < offset or LENGTH_END + length > size:
            raise self._damaged(start)
        return data if wanted == size else FileRecords(self, start, size, next_offset)

    def next_offset(self) -> int:
        """The offset after the last batch, by scanning from the last index entry."""
        if not self.size:
            return self.base_offset
        index = self._offset_index()
        next_offset = self.base_offset
        start = index.positions[-1] if index else 0
        for _, header in scan_headers(self.disk, self.file.handle(), start, self.size, WALK_CHUNK):
            next_offset = header.next_offset
        return next_offset

    # --- time ---------------------------------------------------------------------------------------------

    def find_by_timestamp(
        self, timestamp: int, start_offset: int, end: int, look: Look
    ) -> tuple[Stamp, BatchHeader] | None:
        """The first record from `start_offset` on, before position `end`, with at least `timestamp`.

        `look` finds it in one batch."""
        self._offset_index()
        assert self.indexes.times is not None
        from_offset = max(start_offset, self.base_offset + self.indexes.times.find_before(timestamp))
        start = self.find_position(from_offset)
        if start is None:
            return None
        for position, header in scan_headers(self.disk, self.file.handle(), start, end):
            if header.max_timestamp >= timestamp and header.record_count:
                record = look(self._batch_at(position, header), header, start_offset)
                if record is not None:
                    return record, header
        return None

    def find_latest(self, start_offset: int, end: int, look: Look) -> tuple[Stamp, BatchHeader] | None:
        """The record with the largest timestamp before position `end`; the first one if there are several."""
        if end == self.size and self.base_offset >= start_offset and self.max_timestamp >= 0:
            start = self.find_position(self.indexes.offset_of_max_timestamp)
            if start is not None:
                header = self.header_at(start)
                if header.record_count and header.max_timestamp == self.max_timestamp:
                    record = look(self._batch_at(start, header), header, start_offset)
                    assert record is not None
                    return record, header
        found: tuple[Stamp, BatchHeader] | None = None
        best: tuple[int, BatchHeader] | None = None
        latest = NO_TIMESTAMP - 1
        start = self.find_position(max(start_offset, self.base_offset))
        if start is None:
            return None
        for position, header in scan_headers(self.disk, self.file.handle(), start, end):
            if not header.record_count or header.max_timestamp <= latest:
                continue
            if header.base_offset >= start_offset:
                best, latest = (position, header), header.max_timestamp
            elif (record := look(self._batch_at(position, header), header, start_offset)) is not None:
                # The first batch may contain earlier offsets: its latest record may be below the start.
                found = record, header
                latest = record.timestamp
        if best is None:
            return found
        record = look(self._batch_at(*best), best[1], start_offset)
        return None if record is None else (record, best[1])

    def _batch_at(self, position: int, header: BatchHeader) -> bytes:
        return self.disk.pread(self.file.handle(), header.size_bytes, position)

    # --- truncating, renaming, removing -------------------------------------------------------------------

    def truncate(self, position: int, next_offset: int) -> None:
        """Truncates the log at a batch boundary, and the indexes. Synced: truncated batches never reappear."""
        self._offset_index()
        self.generation += 1
        self.disk.truncate(self.file.handle(), position)
        self.disk.sync(self.file.handle())
        self.size = position
        self._hints.clear()
        self.indexes.truncate(position, next_offset)

    def batches(self, check_from_offset: int = INT64_MAX) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        """Every batch with its position and its bytes; checksums are verified from an offset on."""
        return scan_batches(self.disk, self.file.handle(), 0, self.size, check_from_offset)

    def close(self) -> None:
        self.generation += 1
        self.file.close()

    def forget(self) -> None:
        """The segment is not used any more: cuts its reference cycles, so that no garbage collection is needed."""
        self.file.on_release = None
        self.indexes.path = _no_path

    def change_suffix(self, suffix: str) -> None:
        """Renames the existing files, the .log file last. On OSError the segment keeps its old suffix."""
        for kind in SUFFIXES:
            self._rename(kind, suffix)
        self.suffix = suffix
        self.file.path = self.path(".log")

    def mark_deleted(self) -> None:
        """Renames the existing files for deletion, the .log file first.

        Otherwise a crash could leave it without its aborted transactions. Idempotent: it can be retried after an
        OSError.
        """
        self.file.path = self._rename(".log", ".deleted")
        for kind in SUFFIXES[:-1]:
            self._rename(kind, ".deleted")
        self.suffix = ".deleted"

    def _rename(self, kind: str, suffix: str) -> str:
        """Renames one file if it exists. Returns its new path."""
        before = self.path(kind)
        after = before.removesuffix(self.suffix) + suffix
        if self.disk.exists(before):
            self.disk.rename(before, after)
        return after

    def remove(self) -> None:
        """Closes the segment and deletes its files."""
        self.close()
        for kind in reversed(SUFFIXES):
            if self.disk.exists(self.path(kind)):
                self.disk.remove(self.path(kind))


def _no_path(suffix: str) -> str:
    raise AssertionError(f"the segment of a deleted log was used ({suffix})")
