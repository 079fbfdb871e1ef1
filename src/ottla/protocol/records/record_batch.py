"""Reads and writes record batches of format 2: headers, checksums, records, control batches. Pure.

A broker keeps batches as bytes: it reads the header, verifies the checksum, sets the base offset and the leader
epoch (which the checksum does not cover) and writes. `batch_inspection.py` checks the records before that; only
compaction, recompression and clients decode them.
"""

import enum
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.records import _speedups
from ottla.protocol.records._pure import BytesLike, Headers, Row
from ottla.protocol.records.batch_layout import (
    AFTER_CRC_FORMAT,
    CODEC_MASK,
    CONTROL,
    CRC_END,
    DELETE_HORIZON,
    HEADER_SIZE,
    LENGTH_END,
    LOG_APPEND_TIME,
    MAGIC,
    TRANSACTIONAL,
    UNTIL_CRC_FORMAT,
)
from ottla.protocol.records.compression import Codec, CompressionError, ExpandsTooFar, compress, decompress
from ottla.types import INT32_MAX

__all__ = [
    "HEADER_SIZE",
    "MAX_DECOMPRESSED_BYTES",
    "BatchHeader",
    "BytesLike",
    "Codec",
    "ControlType",
    "CorruptBatch",
    "DecompressedTooLarge",
    "Headers",
    "Record",
    "Row",
    "Section",
    "assemble",
    "build_batch",
    "check_crc",
    "control_batch",
    "control_type",
    "fill_header",
    "iter_batches",
    "not_decompressed",
    "open_batch",
    "open_section",
    "read_end_marker",
    "read_header",
    "read_records",
    "scan_keys",
    "section_records",
    "stamp",
    "stamped_prefix",
    "unreadable",
]

T = TypeVar("T")

NO_TIMESTAMP = -1
MAX_DECOMPRESSED_BYTES = 128 * 1024 * 1024
"""The default limit of a decompressed batch. The limits on producers are much lower."""


_PREFIX = struct.Struct(">qii")
_UNTIL_CRC = struct.Struct(UNTIL_CRC_FORMAT)
_AFTER_CRC = struct.Struct(AFTER_CRC_FORMAT)
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_CONTROL_KEY = struct.Struct(">hh")
_END_MARKER = struct.Struct(">hi")


class CorruptBatch(KafkaError):
    """Bytes that are not a batch, or a batch with a wrong checksum."""

    def __init__(self, detail: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, detail)


class DecompressedTooLarge(CorruptBatch):
    """A batch whose records are larger, once decompressed, than the reader allows."""


def not_decompressed(error: CompressionError) -> CorruptBatch:
    return (DecompressedTooLarge if isinstance(error, ExpandsTooFar) else CorruptBatch)(str(error))


class BatchHeader(NamedTuple):
    """The 61 bytes before a batch's records."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The whole batch, header included."""
        return self.batch_length + LENGTH_END

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The last record's sequence: after 2**31 - 1 comes 0. Without a sequence, -1."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & INT32_MAX

    @property
    def codec(self) -> Codec:
        return Codec(self.attributes & CODEC_MASK)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether base_timestamp is the time from which tombstones may be removed (KIP-534)."""
        return bool(self.attributes & DELETE_HORIZON)


def unreadable(header: BatchHeader, error: CorruptBatch) -> CorruptBatch:
    """The error for a stored batch whose records cannot be read: which one it is, and where the next one begins."""
    return type(error)(
        f"the batch at offset {header.base_offset} cannot be read: {error.detail}; "
        f"the next one begins at offset {header.next_offset}"
    )


class Record(NamedTuple):
    """One record as a reader sees it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Section(NamedTuple):
    """A batch whose uncompressed records are `buffer[start:end]`."""

    header: BatchHeader
    buffer: BytesLike
    start: int
    end: int


class ControlType(enum.IntEnum):
    """The type of a control record. Types of newer versions read as UNKNOWN; readers skip them."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


# Headers and checksums


def read_header(buffer: BytesLike, position: int = 0) -> BatchHeader:
    """The header at `position`; the records need not be in the buffer. Raises CorruptBatch."""
    try:
        return _speedups.unpack_header(BatchHeader, buffer, position)
    except ValueError as error:
        raise CorruptBatch(str(error)) from None


def check_crc(buffer: BytesLike, position: int, header: BatchHeader) -> None:
    """Raises CorruptBatch unless the whole batch is in the buffer and its checksum matches."""
    with memoryview(buffer) as view:
        end = position + header.batch_length + LENGTH_END
        if end > len(view):
            raise CorruptBatch(f"{header.batch_length + LENGTH_END} bytes announced, {len(view) - position} left")
        crc = _speedups.crc32c(view[position + CRC_END : end])
    if crc != header.crc:
        raise CorruptBatch(f"checksum {header.crc:08x} expected, {crc:08x} found")


def open_batch(buffer: BytesLike, position: int = 0) -> BatchHeader:
    """`read_header` and `check_crc` in one call, as a broker does for each batch of a producer."""
    try:
        return _speedups.unpack_header(BatchHeader, buffer, position, _speedups.crc32c)
    except ValueError as error:
        raise CorruptBatch(str(error)) from None


def iter_batches(buffer: BytesLike) -> Iterator[tuple[int, BatchHeader]]:
    """The position and header of each whole batch. A truncated one at the end is skipped, as Fetch allows."""
    position = 0
    size = len(buffer)
    while size - position >= HEADER_SIZE:
        header = read_header(buffer, position)
        end = position + header.batch_length + LENGTH_END
        if end > size:
            return
        yield position, header
        position = end


# Batches out


def build_batch(
    records: Iterable[Row],
    *,
    base_offset: int = 0,
    codec: int = Codec.NONE,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    log_append_time: bool = False,
    partition_leader_epoch: int = -1,
) -> bytes:
    """A batch of (timestamp, key, value, headers) rows, at least one; offsets count up from `base_offset`.

    >>> header = read_header(build_batch([(7, b"k", b"v", ()), (9, None, b"w", [("h", b"x")])], base_offset=40))
    >>> header.record_count, header.last_offset, header.base_timestamp, header.max_timestamp
    (2, 41, 7, 9)
    """
    attributes = codec | transactional * TRANSACTIONAL | log_append_time * LOG_APPEND_TIME
    if not codec:
        return _speedups.encode_batch(
            records,
            base_offset,
            partition_leader_epoch,
            attributes,
            producer_id,
            producer_epoch,
            base_sequence,
            _speedups.crc32c,
        )
    section, count, base_timestamp, max_timestamp = _speedups.encode_records(records)
    if not count:
        raise ValueError("a batch needs at least one record")
    header = BatchHeader(
        base_offset,
        0,
        partition_leader_epoch,
        MAGIC,
        0,
        attributes,
        count - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    return assemble(header, compress(codec, section, level))


def assemble(header: BatchHeader, section: BytesLike) -> bytes:
    """Joins header and records, and fills in length and checksum."""
    length = HEADER_SIZE - LENGTH_END + len(section)
    try:
        checked = _AFTER_CRC.pack(*header[5:])
        crc = _speedups.crc32c(section, _speedups.crc32c(checked))
        before = _UNTIL_CRC.pack(header.base_offset, length, header.partition_leader_epoch, MAGIC, crc)
    except struct.error as error:
        raise OverflowError(str(error)) from None
    return b"".join((before, checked, section))


def fill_header(batch: bytearray, header: BatchHeader) -> None:
    """Writes the header before the records of `batch`, with length and checksum."""
    _AFTER_CRC.pack_into(batch, CRC_END, *header[5:])
    with memoryview(batch) as view:
        crc = _speedups.crc32c(view[CRC_END:])
    _UNTIL_CRC.pack_into(
        batch, 0, header.base_offset, len(batch) - LENGTH_END, header.partition_leader_epoch, MAGIC, crc
    )


def stamp(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Sets base offset and leader epoch in place. The checksum covers neither."""
    _INT64.pack_into(batch, 0, base_offset)
    _INT32.pack_into(batch, LENGTH_END, leader_epoch)


def stamped_prefix(base_offset: int, batch_length: int, leader_epoch: int) -> bytes:
    """The first 16 bytes of a stamped batch, for a batch in read-only memory."""
    return _PREFIX.pack(base_offset, batch_length, leader_epoch)


# Batches in


def _records_of(buffer: BytesLike, position: int, header: BatchHeader, max_bytes: int) -> tuple[BytesLike, int, int]:
    """The record section as (buffer, start, end), decompressed if necessary."""
    start = position + HEADER_SIZE
    end = position + header.batch_length + LENGTH_END
    codec = header.attributes & CODEC_MASK
    # A batch without records, left by compaction, keeps its codec, but nothing follows the header.
    if not codec or (start == end and not header.record_count):
        return buffer, start, end
    with memoryview(buffer) as view:
        if end > len(view):
            raise CorruptBatch(f"{header.batch_length + LENGTH_END} bytes announced, {len(view) - position} left")
        try:
            section = decompress(codec, view[start:end], max_bytes)
        except CompressionError as error:
            raise not_decompressed(error) from None
    return section, 0, len(section)


def read_records(
    buffer: BytesLike,
    position: int = 0,
    header: BatchHeader | None = None,
    *,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> list[Record]:
    """The batch's records with absolute offsets and timestamps. The checksum is not verified: see `check_crc`."""
    if header is None:
        header = read_header(buffer, position)
    return section_records(open_section(buffer, position, header, max_bytes=max_bytes), Record)


def open_section(
    buffer: BytesLike, position: int, header: BatchHeader, *, max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> Section:
    """A batch's record section, decompressed if necessary. The checksum is not verified."""
    return Section(header, *_records_of(buffer, position, header, max_bytes))


def section_records(section: Section, record_type: type[T], lead: tuple[str | int, ...] = ()) -> list[T]:
    """The records with absolute offsets and timestamps, as `Record` or a longer named tuple that begins with `lead`."""
    header = section.header
    try:
        return _speedups.decode_records(
            record_type,
            section.buffer,
            section.start,
            section.end,
            header.record_count,
            header.base_offset,
            header.last_offset_delta,
            header.base_timestamp,
            header.max_timestamp if header.attributes & LOG_APPEND_TIME else None,
            lead,
        )
    except ValueError as error:
        raise CorruptBatch(str(error)) from None


def scan_keys(
    buffer: BytesLike,
    position: int = 0,
    header: BatchHeader | None = None,
    *,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> list[tuple[int, bytes | None, bool]]:
    """Each record's (offset delta, key, whether it is a tombstone), without reading values: for compaction."""
    if header is None:
        header = read_header(buffer, position)
    section, start, end = _records_of(buffer, position, header, max_bytes)
    try:
        return _speedups.scan_keys(section, start, end, header.record_count)
    except ValueError as error:
        raise CorruptBatch(str(error)) from None


# Control batches


def control_batch(
    *,
    commit: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    partition_leader_epoch: int = -1,
) -> bytes:
    """The marker that ends a transaction in one partition."""
    key = _CONTROL_KEY.pack(0, ControlType.COMMIT if commit else ControlType.ABORT)
    row = (timestamp, key, _END_MARKER.pack(0, coordinator_epoch), ())
    attributes = TRANSACTIONAL | CONTROL
    return _speedups.encode_batch(
        [row], base_offset, partition_leader_epoch, attributes, producer_id, producer_epoch, -1, _speedups.crc32c
    )


def control_type(record_key: bytes | None) -> ControlType:
    """The type in a control record's key. Newer versions and types are UNKNOWN, not an error."""
    if record_key is None or len(record_key) < _CONTROL_KEY.size:
        raise CorruptBatch("a control record's key takes four bytes")
    version, number = _CONTROL_KEY.unpack_from(record_key)
    if version < 0:
        raise CorruptBatch(f"version {version} of a control record's key")
    return ControlType(number) if 0 <= number <= ControlType.KRAFT_VOTERS else ControlType.UNKNOWN


def read_end_marker(batch: BytesLike) -> tuple[ControlType, int]:
    """(COMMIT or ABORT, coordinator epoch) of a transaction marker; (type, -1) of any other control batch."""
    header = read_header(batch)
    if not header.is_control:
        raise CorruptBatch("not a control batch")
    records = read_records(batch, 0, header)
    if not records:
        raise CorruptBatch("a control batch without a record")
    kind = control_type(records[0].key)
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return kind, -1
    value = records[0].value
    if value is None or len(value) < _END_MARKER.size:
        raise CorruptBatch("an end marker's value takes six bytes")
    version, coordinator_epoch = _END_MARKER.unpack_from(value)
    if version < 0:
        raise CorruptBatch(f"version {version} of an end marker")
    return kind, coordinator_epoch
