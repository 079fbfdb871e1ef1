"""Finds records by timestamp in the segments of a log: first with the time indexes, then exactly."""

from typing import NamedTuple

from ottla.log.segments.segment_list import Segments
from ottla.protocol.record_batch import BatchHeader, Record


class OffsetAndTimestamp(NamedTuple):
    """The offset, timestamp and leader epoch of a record."""

    offset: int
    timestamp: int
    leader_epoch: int


def find_by_timestamp(segments: Segments, timestamp: int, start: int, upper_bound: int) -> OffsetAndTimestamp | None:
    """The first record in [start, upper_bound) with a timestamp of at least `timestamp`."""
    for segment in segments.between(start, upper_bound):
        if segment.size and segment.max_timestamp >= timestamp:
            found = segment.find_by_timestamp(timestamp, start, segment.size)
            if found is not None:
                return _named(found) if found[0].offset < upper_bound else None
    return None


def find_latest(segments: Segments, start: int, upper_bound: int, log_end_offset: int) -> OffsetAndTimestamp | None:
    """The record in [start, upper_bound) with the largest timestamp; the first one if there are several."""
    best: OffsetAndTimestamp | None = None
    for segment in segments.between(start, upper_bound):
        if not segment.size or (best is not None and segment.max_timestamp <= best.timestamp):
            continue
        number = segments.number_of(segment.base_offset)
        found = segment.find_latest(start, segments.end_position(number, upper_bound, log_end_offset))
        if found is not None and (best is None or found[0].timestamp > best.timestamp):
            best = _named(found)
    return best


def _named(found: tuple[Record, BatchHeader]) -> OffsetAndTimestamp:
    record, header = found
    return OffsetAndTimestamp(record.offset, record.timestamp, header.partition_leader_epoch)
