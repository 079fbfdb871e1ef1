"""Iterates over the batches of a segment file between two positions, with large reads."""

import struct
from collections.abc import Iterator

from ottla.log.disk import Disk
from ottla.protocol.records.batch_layout import HEADER_SIZE, LENGTH_END
from ottla.protocol.records.record_batch import BatchHeader, CorruptBatch, open_batch, read_header
from ottla.types import INT64_MAX

WALK_CHUNK = 4096 + 64
"""Enough to reach the next index entry in one read, with the default index.interval.bytes."""
HEADERS_CHUNK = 64 * 1024
BATCHES_CHUNK = 1024 * 1024

_START = struct.Struct(">qi")
"""Base offset and batch length."""


def scan_headers(
    disk: Disk, handle: int, start: int, end: int, chunk_bytes: int = HEADERS_CHUNK
) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch in [start, end). CorruptBatch at an invalid or incomplete batch."""
    position, chunk, chunk_start = start, b"", start
    while position < end:
        if position + HEADER_SIZE > chunk_start + len(chunk):
            chunk_start = position
            chunk = disk.pread(handle, min(chunk_bytes, end - position), position)
        header = read_header(chunk, position - chunk_start)
        following = position + header.batch_length + LENGTH_END
        if following > end:
            raise CorruptBatch(f"the batch at position {position} ends after the file: {following} > {end}")
        yield position, header
        position = following


def scan_batches(
    disk: Disk, handle: int, start: int, end: int, check_from_offset: int = INT64_MAX
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Like scan_headers, with each batch's bytes. Checksums are verified from `check_from_offset` on."""
    position, chunk, chunk_start = start, memoryview(b""), start
    while position < end:
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk_start, at = position, 0
            chunk = memoryview(disk.pread(handle, min(BATCHES_CHUNK, end - position), position))
            if len(chunk) < HEADER_SIZE:
                read_header(chunk)  # Raises CorruptBatch.
        base_offset, length = _START.unpack_from(chunk, at)
        size = length + LENGTH_END
        if position + size > end:
            read_header(chunk, at)  # Raises a more specific CorruptBatch if the header is invalid too.
            raise CorruptBatch(f"the batch at position {position} ends after the file: {position + size} > {end}")
        if at + size > len(chunk):
            chunk_start, at = position, 0
            chunk = memoryview(disk.pread(handle, max(size, min(BATCHES_CHUNK, end - position)), position))
            if len(chunk) < size:
                raise CorruptBatch(f"read only {len(chunk)} of {size} bytes at position {position}")
        header = (open_batch if base_offset >= check_from_offset else read_header)(chunk, at)
        yield position, header, chunk[at : at + size]
        position += size
