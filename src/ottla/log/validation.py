"""Validates batches before they are appended, and applies the topic's settings to them. Pure.

The hot path checks only the header and the checksum. Records are decoded for compacted topics (every record needs
a key), for limits on old timestamps, and when the broker recompresses them.
"""

from typing import Any

from ottla.errors import ErrorCode, KafkaError
from ottla.log.config import TopicConfig
from ottla.protocol.batch_layout import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    LENGTH_END,
    LENGTH_POSITION,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_POSITION,
    TRANSACTIONAL,
)
from ottla.protocol.batch_rewriting import rewrite
from ottla.protocol.record_batch import (
    BatchHeader,
    BytesLike,
    Codec,
    CorruptBatch,
    inspect_records,
    open_batch,
    read_header,
    read_records,
)
from ottla.types import INT64_MAX

# Attributes that need no further check: the codecs up to lz4 (the first three), and the transactional bit.
_HARMLESS = 0x03 | TRANSACTIONAL
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


def check_timestamps(batch: BytesLike, header: BatchHeader, config: TopicConfig, now: int) -> None:
    """Rejects timestamps too far from the broker's time. Records are decoded only if the past is limited too."""
    if header.attributes & LOG_APPEND_TIME:
        raise InvalidRecord(ErrorCode.INVALID_TIMESTAMP, "producers must use timestamp type CreateTime", [])
    latest = now + config.message_timestamp_after_max_ms
    earliest = now - config.message_timestamp_before_max_ms
    if header.max_timestamp <= latest and (
        config.message_timestamp_before_max_ms == INT64_MAX
        or inspect_records(batch, 0, header).min_timestamp >= earliest
    ):
        return
    # A record without a timestamp (-1) is never out of range.
    wrong = [
        (index, f"timestamp {record.timestamp} is outside [{earliest}, {latest}]")
        for index, record in enumerate(read_records(batch, 0, header))
        if record.timestamp != -1 and not earliest <= record.timestamp <= latest
    ]
    if wrong:
        raise InvalidRecord(ErrorCode.INVALID_TIMESTAMP, f"{len(wrong)} records rejected: {wrong[0][1]}", wrong)
    if header.max_timestamp > latest:
        raise InvalidRecord(
            ErrorCode.INVALID_TIMESTAMP, f"the batch's max timestamp {header.max_timestamp} is after {latest}", []
        )


def check_records(batch: BytesLike, header: BatchHeader, config: TopicConfig) -> None:
    """Checks offset deltas, and keys if the topic is compacted, in a batch that the broker will decode later."""
    summary = inspect_records(batch, 0, header)
    if summary.misplaced >= 0:
        raise InvalidRecord(
            ErrorCode.INVALID_RECORD,
            f"record {summary.misplaced} has a wrong offset delta",
            [(summary.misplaced, "the offset delta is not the record's index in the batch")],
        )
    if config.compacts and summary.null_keys:
        message = "records of a compacted topic must have a key"
        raise InvalidRecord(ErrorCode.INVALID_RECORD, message, [(index, message) for index in summary.null_keys])


class BatchRules:
    """One topic's rules for batches, computed once from its settings instead of on every append."""

    __slots__ = ("_after_max_ms", "_is_plain", "_max_message_bytes", "config")

    def __init__(self, config: TopicConfig) -> None:
        self.config = config
        self._max_message_bytes = config.max_message_bytes
        self._after_max_ms = config.message_timestamp_after_max_ms
        self._is_plain = (
            config.compression_type == "producer"
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
        self, batch: BytesLike, header: BatchHeader, now: int, produce_version: int | None
    ) -> tuple[BytesLike, BatchHeader, int]:
        """Validates a client's batch and applies the topic's settings. Returns (batch, header, append time or -1)."""
        _, _, _, _, _, attributes, delta, _, max_timestamp, producer_id, epoch, sequence, count = header
        if (
            self._is_plain
            and not attributes & ~_HARMLESS
            and count == delta + 1 > 0
            and max_timestamp <= now + self._after_max_ms
            and (sequence >= 0 <= epoch if producer_id >= 0 else not attributes & TRANSACTIONAL)
        ):
            # The common case: none of the checks below would reject or change the batch.
            return batch, header, -1
        return prepare_client_batch(batch, header, self.config, now, produce_version)


def prepare_client_batch(
    batch: BytesLike, header: BatchHeader, config: TopicConfig, now: int, produce_version: int | None
) -> tuple[BytesLike, BatchHeader, int]:
    """Validates a client's batch and applies the topic's settings. Returns (batch, header, append time or -1)."""
    check_client_batch(header, produce_version)
    codec = header.attributes & CODEC_MASK
    target = _TARGET_CODECS.get(config.compression_type, codec)
    if target != codec or config.compacts:
        check_records(batch, header, config)
    append_time = now if config.message_timestamp_type == "LogAppendTime" else None
    if append_time is None:
        check_timestamps(batch, header, config, now)
    if target == codec and append_time is None:
        return batch, header, -1
    try:
        changed = rewrite(
            batch,
            codec=None if target == codec else target,
            level=_level(target, config),
            log_append_time_ms=append_time,
        )
    except ValueError as error:
        raise CorruptBatch(str(error)) from None
    if len(changed) > config.max_message_bytes:
        raise _too_large(len(changed), config)
    return changed, read_header(changed), -1 if append_time is None else append_time


def _level(codec: int, config: TopicConfig) -> int | None:
    if codec == Codec.GZIP:
        return None if config.compression_gzip_level == -1 else config.compression_gzip_level
    return {Codec.LZ4: config.compression_lz4_level, Codec.ZSTD: config.compression_zstd_level}.get(Codec(codec))
