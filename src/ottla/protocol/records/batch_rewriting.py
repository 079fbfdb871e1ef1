"""Rewrites a record batch: for compaction, recompression, LogAppendTime and delete horizons. Pure."""

from collections.abc import Collection, Sequence

from ottla.protocol.records import _speedups
from ottla.protocol.records.batch_layout import CODEC_MASK, DELETE_HORIZON, HEADER_SIZE, LOG_APPEND_TIME
from ottla.protocol.records.compression import compress
from ottla.protocol.records.record_batch import (
    MAX_DECOMPRESSED_BYTES,
    BatchHeader,
    BytesLike,
    CorruptBatch,
    Record,
    assemble,
    open_section,
    read_header,
)


def rewrite(
    batch: BytesLike,
    *,
    records: Sequence[Record] | None = None,
    keep_offsets: Collection[int] | None = None,
    codec: int | None = None,
    level: int | None = None,
    log_append_time_ms: int | None = None,
    delete_horizon_ms: int | None = None,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> bytes:
    """The batch with other records, codec or timestamps. Its offsets, sequence numbers and producer stay the same.

    keep_offsets        keeps the records at these absolute offsets, byte for byte, and drops the others
    records             replaces the records; their offsets must lie within the batch's, in order
    codec, level        recompresses
    log_append_time_ms  sets the timestamp of every record
    delete_horizon_ms   sets the time from which its tombstones may be removed

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
    if log_append_time_ms is not None:
        attributes |= LOG_APPEND_TIME
        max_timestamp = log_append_time_ms
    if codec is not None:
        attributes = attributes & ~CODEC_MASK | codec

    # Deltas are relative to the base timestamp, so they move when it becomes the delete horizon.
    timestamp_shift = header.base_timestamp - base_timestamp
    latest = None
    section: BytesLike = memoryview(batch)[HEADER_SIZE:]
    recompress = True
    if records is not None:
        section, record_count, latest = _encode_within(header, records, base_timestamp)
    elif keep_offsets is not None or timestamp_shift:
        keep = None if keep_offsets is None else {offset - header.base_offset for offset in keep_offsets}
        _, source, start, end = open_section(batch, 0, header, max_bytes=max_bytes)
        try:
            section, record_count, highest = _speedups.filter_records(
                source, start, end, record_count, keep, timestamp_shift
            )
        except ValueError as error:
            raise CorruptBatch(str(error)) from None
        latest = base_timestamp + highest
    elif (attributes ^ header.attributes) & CODEC_MASK:
        _, source, start, end = open_section(batch, 0, header, max_bytes=max_bytes)
        section = memoryview(source)[start:end]
    else:
        recompress = False
    if not record_count:
        attributes &= ~CODEC_MASK
        section = b""
    elif latest is not None and not attributes & LOG_APPEND_TIME:
        max_timestamp = latest
    if recompress and attributes & CODEC_MASK:
        section = compress(attributes & CODEC_MASK, section, level)
    header = header._replace(
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=record_count,
    )
    return assemble(header, section)


def _encode_within(header: BatchHeader, records: Sequence[Record], base_timestamp: int) -> tuple[bytes, int, int]:
    """Records encoded at their own offsets in the batch of `header`: (section, count, latest timestamp)."""
    deltas = [record.offset - header.base_offset for record in records]
    previous = -1
    for delta in deltas:
        if not previous < delta <= header.last_offset_delta:
            raise ValueError(f"offset {header.base_offset + delta} is out of order or outside the batch")
        previous = delta
    section, count, _, latest = _speedups.encode_records(
        [(record.timestamp, record.key, record.value, record.headers) for record in records],
        deltas,
        base_timestamp,
    )
    return section, count, latest
