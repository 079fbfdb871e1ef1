"""Validates batches before they are appended, and applies the topic's settings to them. Pure.

A batch is accepted only if every reader can decode it: header, checksum, and each record's lengths, offset and
timestamp are checked in one pass that creates no objects. Compressed records are decompressed for it once, within the
topic's `ottla.max.decompressed.bytes`.
"""

from typing import Any

from ottla.errors import ErrorCode, KafkaError
from ottla.log.config import TopicConfig
from ottla.protocol.records import _speedups
from ottla.protocol.records.batch_inspection import RecordsSummary, inspect_records, inspect_section
from ottla.protocol.records.batch_layout import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    LENGTH_END,
    LENGTH_POSITION,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_POSITION,
    TRANSACTIONAL,
)
from ottla.protocol.records.compression import Codec, compress, release
from ottla.protocol.records.record_batch import (
    NO_TIMESTAMP,
    BatchHeader,
    BytesLike,
    CorruptBatch,
    DecompressedTooLarge,
    Section,
    assemble,
    open_batch,
    open_section,
    read_header,
    read_records,
)
from ottla.types import INT64_MAX

_EXPLAINED_BYTES_MAX = 1024 * 1024
"""Up to this size, uncompressed, each record with an invalid timestamp is reported."""
_SMALLEST_OLD_BATCH = 17
_SMALLEST_OLD_LENGTH = 14
ZSTD_SINCE_PRODUCE_VERSION = 7

_TARGET_CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


Prepared = tuple[BytesLike, BatchHeader, int, int]
"""A validated batch with the topic's settings applied: (batch, header, append time or -1, bytes inspected)."""


class TooMuchWork(Exception):
    """The batch cannot be prepared within the caller's limit; a higher limit may suffice."""


class InvalidRecord(KafkaError):
    """Rejects individual records: (index in the batch, what is wrong with it)."""

    def __init__(self, code: ErrorCode, detail: str, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(code, detail)
        self.record_errors = record_errors


def _too_large(size: int, config: TopicConfig) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"batch of {size} bytes is larger than max.message.bytes ({config.max_message_bytes})",
    )


def _expands_too_far(size: int, config: TopicConfig) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"batch of {size} bytes decompresses to more than ottla.max.decompressed.bytes "
        f"({config.max_decompressed_bytes}); send smaller batches, or raise that setting of the topic",
    )


def _is_cut_short(records: Any) -> bool:
    """Whether the batch is shorter than its length field. An implausible length is corruption instead."""
    if len(records) <= MAGIC_POSITION:
        return True
    announced = int.from_bytes(records[LENGTH_POSITION:LENGTH_END], "big", signed=True)
    return announced >= _SMALLEST_OLD_LENGTH and announced + LENGTH_END > len(records)


def _invalid(detail: str) -> InvalidRecord:
    return InvalidRecord(ErrorCode.INVALID_RECORD, detail, [])


def check_client_batch(header: BatchHeader, produce_version: int | None) -> None:
    """Checks the header of a batch from a client."""
    attributes = header.attributes
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise _invalid(
            f"batch has {header.record_count} records, but its last offset delta is {header.last_offset_delta}; "
            f"expected {header.record_count - 1}"
        )
    if header.producer_id >= 0:
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise _invalid(f"producer {header.producer_id}: batch has no sequence number or no epoch")
    elif attributes & TRANSACTIONAL:
        raise _invalid("transactional batch has no producer id")
    if attributes & (CODEC_MASK | CONTROL | DELETE_HORIZON):
        if attributes & CONTROL:
            raise _invalid("clients are not allowed to write control batches")
        if attributes & DELETE_HORIZON:
            raise _invalid("clients are not allowed to set a delete horizon")
        check_codec(attributes & CODEC_MASK, produce_version)


def check_codec(codec: int, produce_version: int | None) -> None:
    if codec > Codec.ZSTD:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {codec}")
    if codec == Codec.ZSTD and produce_version is not None and produce_version < ZSTD_SINCE_PRODUCE_VERSION:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"zstd requires Produce version {ZSTD_SINCE_PRODUCE_VERSION} or later (KIP-110), not {produce_version}",
        )


def check_timestamps(
    batch: BytesLike, header: BatchHeader, summary: RecordsSummary, config: TopicConfig, now: int
) -> None:
    """Rejects timestamps too far from the broker's time. A record without a timestamp (-1) is never out of range."""
    if header.attributes & LOG_APPEND_TIME:
        raise InvalidRecord(ErrorCode.INVALID_TIMESTAMP, "producers must use timestamp type CreateTime", [])
    latest = now + config.message_timestamp_after_max_ms
    earliest = now - config.message_timestamp_before_max_ms
    if earliest <= summary.min_timestamp and summary.max_timestamp <= latest:
        return
    try:
        records = read_records(batch, 0, header, max_bytes=_EXPLAINED_BYTES_MAX)
    except CorruptBatch:
        records = []  # too large to report each record
    wrong = [
        (index, f"timestamp {record.timestamp} is outside [{earliest}, {latest}]")
        for index, record in enumerate(records)
        if record.timestamp != -1 and not earliest <= record.timestamp <= latest
    ]
    found = (
        f"{len(wrong)} records rejected: {wrong[0][1]}" if wrong else f"a timestamp is outside [{earliest}, {latest}]"
    )
    raise InvalidRecord(
        ErrorCode.INVALID_TIMESTAMP,
        f"{found} (message.timestamp.before.max.ms, message.timestamp.after.max.ms)",
        wrong,
    )


def check_records(summary: RecordsSummary, config: TopicConfig) -> None:
    """Checks offset deltas, and keys if the topic is compacted."""
    if summary.misplaced >= 0:
        raise InvalidRecord(
            ErrorCode.INVALID_RECORD,
            f"record {summary.misplaced}: the offset delta is not {summary.misplaced}, its index in the batch",
            [(summary.misplaced, "the offset delta is not the record's index in the batch")],
        )
    if config.compacts and summary.null_keys:
        message = "records of a compacted topic must have a key"
        raise InvalidRecord(ErrorCode.INVALID_RECORD, message, [(index, message) for index in summary.null_keys])


class BatchRules:
    """One topic's rules for batches, computed once from its settings instead of on every append."""

    __slots__ = ("_after_max_ms", "_is_plain", "_max_message_bytes", "config", "recompresses")

    def __init__(self, config: TopicConfig) -> None:
        self.config = config
        self.recompresses = config.compression_type != "producer"
        """Whether a batch may be stored with another codec than it has."""
        self._max_message_bytes = config.max_message_bytes
        self._after_max_ms = config.message_timestamp_after_max_ms
        self._is_plain = (
            not self.recompresses
            and config.message_timestamp_type == "CreateTime"
            and config.message_timestamp_before_max_ms == INT64_MAX
            and not config.compacts
        )

    def open(self, records: Any) -> BatchHeader:
        """The header of `records`, which must be exactly one complete batch with a correct checksum, not too large."""
        size = len(records)
        if size >= _SMALLEST_OLD_BATCH and records[MAGIC_POSITION] < MAGIC:
            raise _invalid(f"message format {records[MAGIC_POSITION]} is not supported for writes; use format 2")
        if not size:
            raise _invalid("a produce request must contain exactly one batch per partition; this one has none")
        try:
            header = open_batch(records)
        except CorruptBatch:
            if _is_cut_short(records):
                # As in Kafka: not CORRUPT_MESSAGE, which is retriable, because a retry would not help.
                raise _invalid("a produce request must contain complete batches; this one is truncated") from None
            raise
        if header.batch_length + LENGTH_END != size:
            raise _invalid("a produce request must contain exactly one batch per partition; this one has more")
        if size > self._max_message_bytes:
            raise _too_large(size, self.config)
        return header

    def prepare(
        self,
        batch: BytesLike,
        header: BatchHeader,
        now: int,
        produce_version: int | None,
        work_bytes_max: int | None = None,
    ) -> Prepared:
        """Validates a client's batch and applies the topic's settings. Any thread.

        TooMuchWork if that takes decompressing more than `work_bytes_max` bytes, or compressing as much.
        """
        _, _, _, _, _, attributes, delta, base_timestamp, max_timestamp, producer_id, epoch, sequence, count = header
        if (
            self._is_plain
            and not attributes & ~TRANSACTIONAL
            and count == delta + 1 > 0
            and max_timestamp <= now + self._after_max_ms
            and (sequence >= 0 <= epoch if producer_id >= 0 else not attributes & TRANSACTIONAL)
        ):
            try:
                misplaced, _, highest, _, _ = _speedups.inspect_records(
                    batch, HEADER_SIZE, header.batch_length + LENGTH_END, count, base_timestamp
                )
            except ValueError as error:
                raise _invalid(str(error)) from None
            if misplaced < 0 and highest == max_timestamp:
                # The common case: none of the checks below would reject or change the batch.
                return batch, header, -1, 0
        return prepare_client_batch(batch, header, self.config, now, produce_version, work_bytes_max)


def prepare_client_batch(
    batch: BytesLike,
    header: BatchHeader,
    config: TopicConfig,
    now: int,
    produce_version: int | None,
    work_bytes_max: int | None = None,
) -> Prepared:
    """The general case of `BatchRules.prepare`."""
    check_client_batch(header, produce_version)
    codec = header.attributes & CODEC_MASK
    target = _TARGET_CODECS.get(config.compression_type, codec)
    max_bytes = config.max_decompressed_bytes
    if work_bytes_max is not None and (codec or target != codec):
        max_bytes = min(max_bytes, work_bytes_max)
        if len(batch) > work_bytes_max:
            raise TooMuchWork
    try:
        if target == codec:
            summary = inspect_records(batch, 0, header, max_bytes=max_bytes)
            return _with_settings(batch, header, None, summary, config, now)
        section = open_section(batch, 0, header, max_bytes=max_bytes)
        try:
            return _with_settings(batch, header, section, inspect_section(section), config, now)
        finally:
            release(section.buffer)
    except DecompressedTooLarge:
        if max_bytes < config.max_decompressed_bytes:
            raise TooMuchWork from None
        raise _expands_too_far(len(batch), config) from None
    except CorruptBatch as error:
        # Not CORRUPT_MESSAGE, which is retriable: the checksum was correct, so a retry would not help.
        raise _invalid(error.detail) from None


def _with_settings(
    batch: BytesLike,
    header: BatchHeader,
    section: Section | None,
    summary: RecordsSummary,
    config: TopicConfig,
    now: int,
) -> Prepared:
    """The batch as the topic stores it; `section` has the records if they are to be recompressed."""
    check_records(summary, config)
    codec = header.attributes & CODEC_MASK
    target = codec if section is None else _TARGET_CODECS[config.compression_type]
    attributes = header.attributes & ~CODEC_MASK | target
    if config.message_timestamp_type == "LogAppendTime":
        append_time = max_timestamp = now
        attributes |= LOG_APPEND_TIME
    else:
        check_timestamps(batch, header, summary, config, now)
        append_time, max_timestamp = -1, max(NO_TIMESTAMP, summary.max_timestamp)
    if (attributes, max_timestamp) == (header.attributes, header.max_timestamp):
        return batch, header, append_time, summary.size_bytes
    if section is None:
        content: BytesLike = memoryview(batch)[HEADER_SIZE:]
    else:
        content = memoryview(section.buffer)[section.start : section.end]
        if target:
            content = compress(target, content, _level(target, config))
    changed = assemble(header._replace(attributes=attributes, max_timestamp=max_timestamp), content)
    if len(changed) > config.max_message_bytes:
        raise _too_large(len(changed), config)
    return changed, read_header(changed), append_time, summary.size_bytes


def stamp_append_time(prepared: Prepared, now: int) -> Prepared:
    """Sets the append time of a batch that was prepared earlier: times in a log do not decrease."""
    batch, header, append_time, work = prepared
    if append_time in (-1, now):
        return prepared
    batch = assemble(header._replace(max_timestamp=now), memoryview(batch)[HEADER_SIZE:])
    return batch, read_header(batch), now, work


def _level(codec: int, config: TopicConfig) -> int | None:
    if codec == Codec.GZIP:
        return None if config.compression_gzip_level == -1 else config.compression_gzip_level
    return {Codec.LZ4: config.compression_lz4_level, Codec.ZSTD: config.compression_zstd_level}.get(Codec(codec))
