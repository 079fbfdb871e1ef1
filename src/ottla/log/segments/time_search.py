"""Finds records by timestamp in the segments of a log: first with the time indexes, then exactly."""

from typing import NamedTuple

from ottla.log.segments.segment_list import Segments
from ottla.protocol.records.batch_inspection import Stamp, first_at_or_after, latest
from ottla.protocol.records.compression import release
from ottla.protocol.records.record_batch import (
    BatchHeader,
    CorruptBatch,
    DecompressedTooLarge,
    open_section,
    unreadable,
)

QUICK_BYTES_MAX = 1024 * 1024
"""Batches up to this size, decompressed, are searched at once."""


class OffsetAndTimestamp(NamedTuple):
    """The offset, timestamp and leader epoch of a record."""

    offset: int
    timestamp: int
    leader_epoch: int


class LargeBatch(Exception):
    """A search reached a batch that takes long to decompress. Run `search` in a thread, then repeat the search: it
    remembers what was found."""

    def __init__(self, search: "TimeSearch", data: bytes, header: BatchHeader, from_offset: int) -> None:
        super().__init__(f"the batch at offset {header.base_offset} takes long to decompress")
        self.time_search = search
        self._data = data
        self._header = header
        self._from_offset = from_offset

    def search(self) -> None:
        """Any thread."""
        self.time_search.look_closely(self._data, self._header, self._from_offset)


class TimeSearch:
    """A search for the first record with at least a timestamp, or, without one, for the record with the largest."""

    def __init__(self, timestamp: int | None, max_decompressed_bytes: int) -> None:
        self.timestamp = timestamp
        self._max_bytes = max_decompressed_bytes
        self._known: dict[int, Stamp | CorruptBatch | None] = {}

    def look(self, data: bytes, header: BatchHeader, from_offset: int) -> Stamp | None:
        """The record in one batch. Raises LargeBatch, or CorruptBatch with the batch's offset."""
        if header.base_offset in self._known:
            found = self._known[header.base_offset]
            if isinstance(found, CorruptBatch):
                raise found
            return found
        try:
            return self._find(data, header, from_offset, min(QUICK_BYTES_MAX, self._max_bytes))
        except DecompressedTooLarge:
            raise LargeBatch(self, data, header, from_offset) from None

    def look_closely(self, data: bytes, header: BatchHeader, from_offset: int) -> None:
        try:
            self._known[header.base_offset] = self._find(data, header, from_offset, self._max_bytes)
        except CorruptBatch as error:
            self._known[header.base_offset] = error

    def _find(self, data: bytes, header: BatchHeader, from_offset: int, max_bytes: int) -> Stamp | None:
        try:
            section = open_section(data, 0, header, max_bytes=max_bytes)
            try:
                if self.timestamp is None:
                    return latest(section, from_offset)
                return first_at_or_after(section, self.timestamp, from_offset)
            finally:
                release(section.buffer)
        except CorruptBatch as error:
            raise unreadable(header, error) from None


def find_by_timestamp(
    segments: Segments, search: TimeSearch, start: int, upper_bound: int
) -> OffsetAndTimestamp | None:
    """The first record in [start, upper_bound) with a timestamp of at least that of the search."""
    timestamp = search.timestamp
    assert timestamp is not None
    for segment in segments.between(start, upper_bound):
        if segment.size and segment.max_timestamp >= timestamp:
            found = segment.find_by_timestamp(timestamp, start, segment.size, search.look)
            if found is not None:
                return _named(found) if found[0].offset < upper_bound else None
    return None


def find_latest(
    segments: Segments, search: TimeSearch, start: int, upper_bound: int, log_end_offset: int
) -> OffsetAndTimestamp | None:
    """The record in [start, upper_bound) with the largest timestamp; the first one if there are several."""
    best: OffsetAndTimestamp | None = None
    for segment in segments.between(start, upper_bound):
        if not segment.size or (best is not None and segment.max_timestamp <= best.timestamp):
            continue
        number = segments.number_of(segment.base_offset)
        end = segments.end_position(number, upper_bound, log_end_offset)
        found = segment.find_latest(start, end, search.look)
        if found is not None and (best is None or found[0].timestamp > best.timestamp):
            best = _named(found)
    return best


def _named(found: tuple[Stamp, BatchHeader]) -> OffsetAndTimestamp:
    record, header = found
    return OffsetAndTimestamp(record.offset, record.timestamp, header.partition_leader_epoch)
