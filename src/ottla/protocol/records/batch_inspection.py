"""Checks the records of a batch without creating them, and finds one by its timestamp. Pure.

Compressed records are decompressed piece by piece, so memory use depends on the largest record, not on the whole batch
(except for zstd, which is not split: the bound limits its memory).
"""

import mmap
from collections.abc import Iterator
from typing import NamedTuple

from ottla.protocol.records import _speedups
from ottla.protocol.records.batch_layout import CODEC_MASK, HEADER_SIZE, LENGTH_END, LOG_APPEND_TIME
from ottla.protocol.records.compression import Codec, CompressionError, decompress, decompress_in_pieces, release
from ottla.protocol.records.record_batch import (
    MAX_DECOMPRESSED_BYTES,
    BatchHeader,
    BytesLike,
    CorruptBatch,
    Section,
    not_decompressed,
    read_header,
)
from ottla.types import INT64_MAX, INT64_MIN

_WINDOW_BYTES = 64 * 1024
"""The part of a section in which one record is searched: the records of a window are read one by one."""
_LARGE_RECORD_BYTES = 1024 * 1024
_STEP_BYTES = 512 * 1024
"""How much is checked in one call: two milliseconds in the worst case, during which other threads are blocked."""


class RecordsSummary(NamedTuple):
    """What a broker needs to know about the records that a client sent."""

    null_keys: list[int]
    """Indexes of the first thousand records without a key."""
    misplaced: int
    """Index of the first record whose offset delta is not its index; -1 when all are in place."""
    min_timestamp: int
    """Ignores records without a timestamp; 2**63 - 1 if none has one."""
    max_timestamp: int
    size_bytes: int
    """Of the uncompressed records."""


def inspect_records(
    buffer: BytesLike,
    position: int = 0,
    header: BatchHeader | None = None,
    *,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> RecordsSummary:
    """The summary of a batch's records. Raises CorruptBatch, or DecompressedTooLarge beyond `max_bytes`."""
    if header is None:
        header = read_header(buffer, position)
    start = position + HEADER_SIZE
    end = position + header.batch_length + LENGTH_END
    codec = header.attributes & CODEC_MASK
    if not codec or (start == end and not header.record_count):
        return inspect_section(Section(header, buffer, start, end))
    view = memoryview(buffer)
    if end > len(view):
        raise CorruptBatch(f"{header.batch_length + LENGTH_END} bytes announced, {len(view) - position} left")
    try:
        if codec == Codec.ZSTD:
            whole = decompress(codec, view[start:end], max_bytes)
            try:
                return inspect_section(Section(header, whole, 0, len(whole)))
            finally:
                release(whole)
        pieces = decompress_in_pieces(codec, view[start:end], max_bytes)
        first = next(pieces, b"")
        second = next(pieces, None)
        if second is None:
            return inspect_section(Section(header, first, 0, len(first)))
        return _inspect_pieces(header, first, second, pieces, max_bytes)
    except CompressionError as error:
        raise not_decompressed(error) from None


def inspect_section(section: Section) -> RecordsSummary:
    """The summary of uncompressed records. Raises CorruptBatch."""
    header, buffer, start, end = section
    null_keys: list[int] = []
    misplaced, lowest, highest = -1, INT64_MAX, INT64_MIN
    position, index, step = start, 0, _STEP_BYTES
    try:
        while True:
            stop = min(position + step, end)
            wrong, low, high, after, index = _speedups.inspect_records(
                buffer,
                position,
                stop,
                header.record_count - index,
                header.base_timestamp,
                index,
                stop == end,
                null_keys,
            )
            if misplaced < 0:
                misplaced = wrong
            lowest, highest = min(lowest, low), max(highest, high)
            if stop == end:
                break
            if index == header.record_count:
                raise ValueError(f"{end - after} bytes follow the last record")
            # A record that is larger than the step needs a larger one.
            step = _STEP_BYTES if after > position else 2 * step
            position = after
    except ValueError as error:
        raise CorruptBatch(str(error)) from None
    return _summary(header, null_keys, misplaced, lowest, highest, end - start)


def _inspect_pieces(
    header: BatchHeader, first: BytesLike, second: BytesLike, others: Iterator[BytesLike], max_bytes: int
) -> RecordsSummary:
    count, base_timestamp = header.record_count, header.base_timestamp
    null_keys: list[int] = []
    misplaced, lowest, highest = -1, INT64_MAX, INT64_MIN
    index, size, wanted = 0, len(first), 0
    rest: bytearray | memoryview = bytearray(first)
    piece: BytesLike | None = second
    while True:
        if wanted > _LARGE_RECORD_BYTES and len(rest) < wanted <= max_bytes:
            rest, piece, more = _gathered(rest, wanted, piece, others)
            size += more
        if len(rest) >= wanted or piece is None:
            try:
                wrong, low, high, position, index = _speedups.inspect_records(
                    rest, 0, len(rest), count - index, base_timestamp, index, piece is None, null_keys
                )
                if index == count and position < len(rest):
                    raise ValueError(f"more than {len(rest) - position} bytes follow the last record")
            except ValueError as error:
                raise CorruptBatch(str(error)) from None
            if misplaced < 0:
                misplaced = wrong
            lowest, highest = min(lowest, low), max(highest, high)
            left = bytearray(memoryview(rest)[position:])
            release(rest)
            if piece is None:
                return _summary(header, null_keys, misplaced, lowest, highest, size)
            rest = left
            wanted = _record_size(rest)
        assert isinstance(rest, bytearray)
        size += len(piece)
        rest += piece
        piece = next(others, None)


def _gathered(
    rest: BytesLike, wanted: int, piece: BytesLike | None, others: Iterator[BytesLike]
) -> tuple[memoryview, BytesLike | None, int]:
    """`rest` and the pieces after it, until a large record is complete: in mapped memory, which grows without copies.
    Also the piece after them, and how many bytes were added."""
    room = memoryview(mmap.mmap(-1, wanted))
    room[: len(rest)] = rest
    filled = len(rest)
    while piece is not None and filled + len(piece) <= wanted:
        room[filled : filled + len(piece)] = piece
        filled += len(piece)
        piece = next(others, None)
    if piece is not None:
        # The record ends within this piece; the rest of it is read next.
        end = wanted - filled
        room[filled:wanted] = piece[:end]
        filled, piece = wanted, piece[end:]
    return room[:filled], piece, filled - len(rest)


class _Window(NamedTuple):
    """Complete records within a section."""

    start: int
    records: int
    highest: int


def _windows(section: Section) -> Iterator[_Window]:
    """The section in small parts, each with its highest timestamp. Raises CorruptBatch where it cannot be read."""
    header, buffer, position, end = section
    index, step = 0, _WINDOW_BYTES
    try:
        while index < header.record_count or position < end:
            stop = min(position + step, end)
            first = index
            _, _, highest, after, index = _speedups.inspect_records(
                buffer, position, stop, header.record_count - index, header.base_timestamp, index, stop == end
            )
            if index > first:
                yield _Window(position, index - first, highest)
            elif index == header.record_count:
                raise ValueError(f"{end - position} bytes follow the last record")
            step = _WINDOW_BYTES if after > position else 2 * step
            position = after
    except ValueError as error:
        raise CorruptBatch(str(error)) from None


class Stamp(NamedTuple):
    """Where a record is, and when it was written."""

    offset: int
    timestamp: int


def _stamps_in(section: Section, window: _Window) -> Iterator[Stamp]:
    """The records of a window that was checked, without their keys and values, which may be large."""
    header, buffer = section.header, section.buffer
    position, previous = window.start, -1
    for _ in range(window.records):
        size, start = _speedups.decode_varint(buffer, position)
        position = start + size
        timestamp_delta, start = _speedups.decode_varint(buffer, start + 1)
        offset_delta, _ = _speedups.decode_varint(buffer, start)
        if not previous < offset_delta <= header.last_offset_delta:
            raise CorruptBatch("a record's offset is out of order")
        previous = offset_delta
        timestamp = header.max_timestamp if header.is_log_append_time else header.base_timestamp + timestamp_delta
        yield Stamp(header.base_offset + offset_delta, timestamp)


def first_at_or_after(section: Section, timestamp: int, from_offset: int) -> Stamp | None:
    """The first record from an offset on with at least this timestamp."""
    is_append_time = section.header.is_log_append_time
    for window in _windows(section):
        if is_append_time or window.highest >= timestamp:
            for found in _stamps_in(section, window):
                if found.timestamp >= timestamp and found.offset >= from_offset:
                    return found
    return None


def latest(section: Section, from_offset: int) -> Stamp | None:
    """The record from an offset on with the largest timestamp; the first one if there are several."""
    is_append_time = section.header.is_log_append_time
    best: Stamp | None = None
    for window in _windows(section):
        if best is None or (window.highest > best.timestamp and not is_append_time):
            for found in _stamps_in(section, window):
                if found.offset >= from_offset and (best is None or found.timestamp > best.timestamp):
                    best = found
    return best


def _record_size(data: bytearray) -> int:
    """How many bytes the record at the start of `data` takes; 0 if that is not known yet."""
    try:
        size, start = _speedups.decode_varint(data, 0)
    except ValueError:
        return 0
    return start + size


def _summary(
    header: BatchHeader, null_keys: list[int], misplaced: int, lowest: int, highest: int, size: int
) -> RecordsSummary:
    if header.attributes & LOG_APPEND_TIME:
        lowest = highest = header.max_timestamp
    return RecordsSummary(null_keys, misplaced, lowest, highest, size)
