"""Rewrites a record batch for compaction: without some of its records, or with a delete horizon. Pure."""

from collections.abc import Collection

from ottla.protocol.records import _speedups
from ottla.protocol.records.batch_layout import CODEC_MASK, DELETE_HORIZON, HEADER_SIZE, LOG_APPEND_TIME
from ottla.protocol.records.compression import compress
from ottla.protocol.records.record_batch import (
    MAX_DECOMPRESSED_BYTES,
    BytesLike,
    CorruptBatch,
    assemble,
    open_section,
    read_header,
)


def rewrite(
    batch: BytesLike,
    *,
    keep_offsets: Collection[int] | None = None,
    delete_horizon_ms: int | None = None,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> bytes:
    """The batch with fewer records, or with a delete horizon. Its offsets, sequence numbers and producer stay the same.

    keep_offsets       keeps the records at these absolute offsets, byte for byte, and drops the others
    delete_horizon_ms  sets the time from which its tombstones may be removed

    The offset range and the sequence numbers stay even if no record is left, so that the log keeps its order and the
    broker its producer state.
    """
    header = read_header(batch)
    if len(batch) != header.size_bytes:
        raise CorruptBatch(f"{header.size_bytes} bytes announced, {len(batch)} found")
    attributes, record_count = header.attributes, header.record_count
    base_timestamp, max_timestamp = header.base_timestamp, header.max_timestamp
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON
        base_timestamp = delete_horizon_ms

    # Deltas are relative to the base timestamp, so they move when it becomes the delete horizon.
    timestamp_shift = header.base_timestamp - base_timestamp
    section: BytesLike = memoryview(batch)[HEADER_SIZE:]
    if keep_offsets is not None or timestamp_shift:
        keep = None if keep_offsets is None else {offset - header.base_offset for offset in keep_offsets}
        _, source, start, end = open_section(batch, 0, header, max_bytes=max_bytes)
        try:
            section, record_count, highest = _speedups.filter_records(
                source, start, end, record_count, keep, timestamp_shift
            )
        except ValueError as error:
            raise CorruptBatch(str(error)) from None
        if record_count and not attributes & LOG_APPEND_TIME:
            max_timestamp = base_timestamp + highest
        if record_count and attributes & CODEC_MASK:
            section = compress(attributes & CODEC_MASK, section)
    if not record_count:
        attributes &= ~CODEC_MASK
        section = b""
    header = header._replace(
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=record_count,
    )
    return assemble(header, section)
