"""Walks the batches of a segment file from one position to another, in large reads."""

from collections.abc import Iterator

from ottla.log.disk import Disk
from ottla.protocol.record_batch import HEADER_SIZE, BatchHeader, CorruptBatch, read_header

WALK_CHUNK = 4096 + 64
"""Enough to get from one index entry to the next in one read, with the usual interval."""
HEADERS_CHUNK = 64 * 1024
BATCHES_CHUNK = 1024 * 1024


def scan_headers(
    disk: Disk, handle: int, start: int, end: int, chunk_bytes: int = HEADERS_CHUNK
) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch in [start, end). CorruptBatch where the bytes are no batch, or not whole."""
    position, chunk, chunk_start = start, b"", start
    while position < end:
        if position + HEADER_SIZE > chunk_start + len(chunk):
            chunk_start = position
            chunk = disk.pread(handle, min(chunk_bytes, end - position), position)
        header = read_header(chunk, position - chunk_start)
        following = position + header.batch_length + 12
        if following > end:
            raise CorruptBatch(f"the batch at position {position} ends after the file: {following} > {end}")
        yield position, header
        position = following


def scan_batches(disk: Disk, handle: int, start: int, end: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Like scan_headers, with each batch's bytes. The checksum is left to the caller."""
    position, chunk, chunk_start = start, memoryview(b""), start
    while position < end:
        if position + HEADER_SIZE > chunk_start + len(chunk):
            chunk_start = position
            chunk = memoryview(disk.pread(handle, min(BATCHES_CHUNK, end - position), position))
        header = read_header(chunk, position - chunk_start)
        size = header.batch_length + 12
        if position + size > end:
            raise CorruptBatch(f"the batch at position {position} ends after the file: {position + size} > {end}")
        if position + size > chunk_start + len(chunk):
            chunk_start = position
            wanted = max(size, min(BATCHES_CHUNK, end - position))
            chunk = memoryview(disk.pread(handle, wanted, position))
            if len(chunk) < size:
                raise CorruptBatch(f"only {len(chunk)} of {size} bytes can be read at position {position}")
        at = position - chunk_start
        yield position, header, chunk[at : at + size]
        position += size
