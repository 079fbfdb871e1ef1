"""Validation of batches before they are appended. Spec: R4, R8."""

import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import ErrorCode, KafkaError
from ottla.log.config import TopicConfig
from ottla.log.partition_log import Origin
from ottla.log.validation import BatchRules, InvalidRecord
from ottla.protocol.records import _speedups
from ottla.protocol.records.compression import compress
from ottla.protocol.records.record_batch import (
    BatchHeader,
    Codec,
    assemble,
    build_batch,
    check_crc,
    control_batch,
    read_header,
    read_records,
)
from tests.support.wire.damaged import damaged
from tests.support.worlds.log_world import NOON, LogWorld

HOUR = 3_600_000
COMPLETE = build_batch([(NOON, b"k", b"v" * 50, ())])
STRICT = TopicConfig(cleanup_policy=("compact",), compression_type="gzip")
"""Settings that make the broker decode every record."""
STAMPED = TopicConfig(message_timestamp_type="LogAppendTime")


def rejected(code: ErrorCode, act: Callable[[], Any]) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        act()
    assert caught.value.code is code
    return caught.value


def with_fields(batch: bytes, **fields: int) -> bytes:
    """The batch with other header fields and a correct checksum."""
    places = {"attributes": (21, ">h"), "last_offset_delta": (23, ">i"), "record_count": (57, ">i"), "max": (35, ">q")}
    changed = bytearray(batch)
    for name, value in fields.items():
        position, form = places[name]
        struct.pack_into(form, changed, position, value)
    struct.pack_into(">I", changed, 17, _speedups.crc32c(bytes(changed[21:])))
    return bytes(changed)


@pytest.fixture
def world(tmp_path: Path) -> LogWorld:
    return LogWorld(tmp_path)


def test_exactly_one_batch_is_accepted(world: LogWorld) -> None:
    batch = world.batch("a")
    rejected(ErrorCode.INVALID_RECORD, lambda: world.log.append(b"", leader_epoch=0))
    rejected(ErrorCode.INVALID_RECORD, lambda: world.log.append(batch + batch, leader_epoch=0))
    assert world.log.log_end_offset == 0
    assert world.log.size_bytes == 0


def test_a_truncated_batch_cannot_be_appended(world: LogWorld) -> None:
    batch = world.batch("hello")
    for length in (1, 12, 60, len(batch) - 1):
        rejected(ErrorCode.INVALID_RECORD, partial(world.log.append, batch[:length], leader_epoch=0))


@pytest.mark.parametrize("size", [1, 10, 16, 17, 20, 60, 61, 80, len(COMPLETE) - 1])
def test_a_truncated_batch_is_invalid_not_corrupt(size: int) -> None:
    """CORRUPT_MESSAGE is retriable, and sending a truncated batch again would not help."""
    rejected(ErrorCode.INVALID_RECORD, lambda: BatchRules(TopicConfig()).open(COMPLETE[:size]))


@pytest.mark.parametrize(("position", "value"), [(11, 5), (8, 0xFF), (17, 1), (70, 0xFF)])
def test_a_complete_batch_with_wrong_bytes_is_corrupt(position: int, value: int) -> None:
    wrong = bytearray(COMPLETE)
    wrong[position] ^= value
    if position == 11:
        wrong[8:12] = value.to_bytes(4, "big")
    rejected(ErrorCode.CORRUPT_MESSAGE, lambda: BatchRules(TopicConfig()).open(bytes(wrong)))


def test_one_wrong_byte_makes_a_batch_corrupt(world: LogWorld) -> None:
    batch = world.batch("hello")
    for position in range(21, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 1
        rejected(ErrorCode.CORRUPT_MESSAGE, partial(world.log.append, damaged, leader_epoch=0))
    assert world.log.log_end_offset == 0


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_formats_are_rejected(world: LogWorld, magic: int) -> None:
    batch = bytearray(world.batch("a"))
    batch[16] = magic
    rejected(ErrorCode.INVALID_RECORD, lambda: world.log.append(batch, leader_epoch=0))


@pytest.mark.parametrize(
    "fields",
    [
        {"record_count": 0},
        {"record_count": 2},
        {"last_offset_delta": 4},
        {"attributes": 0x20},
        {"attributes": 0x30},
        {"attributes": 0x40},
        {"attributes": 0x10},
    ],
    ids=["no record", "too many", "not dense", "control", "marker", "horizon", "txn without producer"],
)
def test_attributes_reserved_for_the_broker_are_rejected(world: LogWorld, fields: dict[str, int]) -> None:
    batch = with_fields(world.batch("a"), **fields)
    rejected(ErrorCode.INVALID_RECORD, lambda: world.log.append(batch, leader_epoch=0))


def test_clients_cannot_write_markers(world: LogWorld) -> None:
    marker = control_batch(commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=NOON)
    rejected(ErrorCode.INVALID_RECORD, lambda: world.log.append(marker, leader_epoch=0))
    world.log.append(marker, leader_epoch=0, origin=Origin.COORDINATOR)


def test_an_idempotent_producer_must_send_sequences(world: LogWorld) -> None:
    batch = world.batch("a", producer_id=5, producer_epoch=0)
    rejected(ErrorCode.INVALID_RECORD, lambda: world.log.append(batch, leader_epoch=0))
    world.log.append(batch, leader_epoch=0, origin=Origin.COORDINATOR)


def test_zstd_requires_produce_version_7(world: LogWorld) -> None:
    batch = world.batch("a", codec=Codec.ZSTD)
    rejected(
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        lambda: world.log.append(batch, leader_epoch=0, produce_version=6),
    )
    world.log.append(batch, leader_epoch=0, produce_version=7)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_rejected(world: LogWorld, codec: int) -> None:
    batch = with_fields(world.batch("a"), attributes=codec)
    rejected(ErrorCode.CORRUPT_MESSAGE, lambda: world.log.append(batch, leader_epoch=0))


def test_batches_are_stored_as_received(world: LogWorld) -> None:
    for codec in Codec:
        world.append("a", "b", codec=codec)
    assert [header.codec for header, _ in world.read_batches()] == list(Codec)


def test_a_batch_larger_than_max_message_bytes_is_rejected(tmp_path: Path) -> None:
    size = len(LogWorld(tmp_path / "measure").batch("x" * 100))
    world = LogWorld(tmp_path, max_message_bytes=size)
    world.append("x" * 100)
    rejected(ErrorCode.MESSAGE_TOO_LARGE, lambda: world.append("x" * 101))


def test_a_batch_larger_than_segment_bytes_is_rejected(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, segment_bytes=150)
    rejected(ErrorCode.RECORD_LIST_TOO_LARGE, lambda: world.append("x" * 100))
    assert world.append("x" * 50).base_offset == 0


def test_a_compacted_topic_rejects_records_without_a_key(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, cleanup_policy=("compact",))
    error = rejected(ErrorCode.INVALID_RECORD, lambda: world.append(("k", "1"), (None, "2"), ("k", "3"), (None, "4")))
    assert isinstance(error, InvalidRecord)
    assert [index for index, _ in error.record_errors] == [1, 3]
    assert world.append(("k", "1"), ("k", None)).last_offset == 1


def test_compressed_batches_of_a_compacted_topic_are_checked_for_keys(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, cleanup_policy=("compact",))
    rejected(ErrorCode.INVALID_RECORD, lambda: world.append((None, "2"), codec=Codec.LZ4))
    garbage = with_fields(world.batch(("k", "1")), attributes=int(Codec.GZIP))
    rejected(ErrorCode.INVALID_RECORD, lambda: world.log.append(garbage, leader_epoch=0))


def test_a_record_too_far_in_the_future_is_rejected(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, message_timestamp_after_max_ms=HOUR)
    world.append("soon", timestamp=NOON + HOUR)
    error = rejected(ErrorCode.INVALID_TIMESTAMP, lambda: world.append("later", timestamp=NOON + HOUR + 1))
    assert isinstance(error, InvalidRecord)
    assert [index for index, _ in error.record_errors] == [0]


def test_a_record_too_old_for_the_topic_is_rejected(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, message_timestamp_before_max_ms=HOUR)
    rows = [(NOON, None, b"now", ()), (NOON - HOUR - 1, None, b"old", ())]
    error = rejected(ErrorCode.INVALID_TIMESTAMP, lambda: world.log.append(build_batch(rows), leader_epoch=0))
    assert isinstance(error, InvalidRecord)
    assert [index for index, _ in error.record_errors] == [1]
    world.append("old enough", timestamp=NOON - HOUR)


def test_a_record_without_a_timestamp_is_never_out_of_range(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, message_timestamp_before_max_ms=HOUR)
    assert world.append("timeless", timestamp=-1).base_offset == 0


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("announced", [NOON + 2 * HOUR, NOON - 1, -1])
def test_a_wrong_max_timestamp_is_corrected(world: LogWorld, codec: Codec, announced: int) -> None:
    world.log.append(with_fields(world.batch("a", codec=codec), max=announced), leader_epoch=0)
    ((header, batch),) = world.read_batches()
    assert header.max_timestamp == NOON
    check_crc(batch, 0, header)


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("codec", list(Codec))
def test_damaged_records_are_rejected(tmp_path: Path, codec: Codec, timestamp_type: str) -> None:
    """Spec: R8. The checksum is correct, but no reader could decode the batch."""
    world = LogWorld(tmp_path, message_timestamp_type=timestamp_type)
    for name, batch in damaged(codec).items():
        error = rejected(ErrorCode.INVALID_RECORD, partial(world.log.append, batch, leader_epoch=0))
        assert error.detail.startswith("orders-0: "), name
    assert world.log.log_end_offset == 0
    error = rejected(
        ErrorCode.INVALID_RECORD,
        lambda: world.log.append(damaged(codec)["a value longer than its record"], leader_epoch=0),
    )
    assert error.detail == "orders-0: record 0: a length is out of bounds"


@given(data=st.data(), codec=st.sampled_from(list(Codec)), settings=st.sampled_from([TopicConfig(), STRICT, STAMPED]))
def test_accepted_batches_can_be_decoded(data: st.DataObject, codec: Codec, settings: TopicConfig) -> None:
    """Spec: R8. Whatever a client changes, a reader gets every record that the header announces."""
    rows = data.draw(
        st.lists(
            st.tuples(st.integers(NOON - 9, NOON), st.sampled_from([b"k", b""]), st.binary(), st.just(())), min_size=1
        )
    )
    section, count, base, latest = _speedups.encode_records(rows)
    changed = bytearray(section)
    for _ in range(data.draw(st.integers(0, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    count += data.draw(st.sampled_from([0, 0, 0, 1, -1]))
    header = BatchHeader(0, 0, -1, 2, 0, int(codec), max(0, count - 1), base, latest, -1, -1, -1, count)
    batch = bytearray(assemble(header, compress(codec, bytes(changed))))
    if data.draw(st.booleans()):
        batch[data.draw(st.integers(61, len(batch) - 1))] ^= data.draw(st.integers(1, 255))
        struct.pack_into(">I", batch, 17, _speedups.crc32c(bytes(batch[21:])))
    rules = BatchRules(settings)
    try:
        accepted, header, _, _ = rules.prepare(batch, rules.open(batch), NOON, None)
    except KafkaError:
        return
    records = read_records(accepted)
    assert [record.offset for record in records] == list(range(header.record_count))
    assert header.max_timestamp == max(-1, *(record.timestamp for record in records))
    check_crc(accepted, 0, header)


@given(
    st.lists(
        st.tuples(
            st.integers(0, NOON),
            st.none() | st.binary(),
            st.none() | st.binary(),
            st.lists(st.tuples(st.text(), st.none() | st.binary()), max_size=3),
        ),
        min_size=1,
    ),
    st.sampled_from(list(Codec)),
)
def test_every_batch_that_our_encoder_writes_is_accepted_unchanged(rows: list[Any], codec: Codec) -> None:
    rules = BatchRules(TopicConfig())
    batch = build_batch(rows, codec=codec)
    assert rules.prepare(batch, rules.open(batch), NOON, None)[:3] == (batch, read_header(batch), -1)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("compression_type", ["producer", "uncompressed"])
def test_a_batch_that_expands_too_far_is_rejected(tmp_path: Path, codec: Codec, compression_type: str) -> None:
    world = LogWorld(tmp_path, max_decompressed_bytes=100_000, compression_type=compression_type)
    world.append("x" * 99_000, codec=codec)
    error = rejected(ErrorCode.MESSAGE_TOO_LARGE, lambda: world.append("x" * 100_001, codec=codec))
    assert "decompresses to more than ottla.max.decompressed.bytes (100000); send smaller batches" in error.detail


def test_batches_of_the_brokers_own_coordinators_are_not_inspected(world: LogWorld) -> None:
    batch = with_fields(world.batch("a"), max=NOON + 2 * HOUR)
    world.log.append(batch, leader_epoch=0, origin=Origin.COORDINATOR)
    ((header, _),) = world.read_batches()
    assert header.max_timestamp == NOON + 2 * HOUR


def test_producers_cannot_set_log_append_time(world: LogWorld) -> None:
    batch = world.batch("a", log_append_time=True)
    rejected(ErrorCode.INVALID_TIMESTAMP, lambda: world.log.append(batch, leader_epoch=0))


@pytest.mark.parametrize("codec", list(Codec))
def test_log_append_time_comes_from_the_broker(tmp_path: Path, codec: Codec) -> None:
    world = LogWorld(tmp_path, message_timestamp_type="LogAppendTime")
    appended = world.append("a", "b", timestamp=5, codec=codec)
    assert appended.log_append_time_ms == NOON
    assert [record.timestamp for record in world.records()] == [NOON, NOON]
    assert world.values() == ["a", "b"]


def test_a_duplicate_returns_the_append_time_of_the_original(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, message_timestamp_type="LogAppendTime")
    world.produce(5, "a")
    world.now += 1000
    again = world.append("a", producer_id=5, producer_epoch=0, base_sequence=0)
    assert again.duplicate
    assert again.log_append_time_ms == NOON


@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("codec", list(Codec))
def test_the_broker_recompresses_to_the_topics_compression_type(tmp_path: Path, codec: Codec, target: str) -> None:
    world = LogWorld(tmp_path, compression_type=target)
    world.produce(5, *("value" * 20 for _ in range(10)), codec=codec)
    ((header, batch),) = world.read_batches()
    assert header.codec.name.lower() == ("none" if target == "uncompressed" else target)
    assert (header.producer_id, header.base_sequence, header.last_offset_delta) == (5, 0, 9)
    assert [record.value for record in read_records(batch)] == [b"value" * 20] * 10


def test_a_recompressed_batch_must_fit_max_message_bytes(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, compression_type="uncompressed", max_message_bytes=500)
    rejected(ErrorCode.MESSAGE_TOO_LARGE, lambda: world.append("x" * 1000, codec=Codec.GZIP))


def test_wrong_offset_deltas_are_rejected_when_the_batch_is_decoded(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, cleanup_policy=("compact",))
    batch = bytearray(world.batch(("k", "1"), ("k", "2")))
    second = batch.index(b"\x02", 61 + 8)
    assert batch[second] == 2  # zigzag of 1: the second record's offset delta
    batch[second] = 0
    batch = bytearray(with_fields(bytes(batch)))
    rejected(ErrorCode.INVALID_RECORD, lambda: world.log.append(batch, leader_epoch=0))


@given(st.binary(max_size=200))
def test_garbage_is_rejected_with_a_kafka_error(data: bytes) -> None:
    rules = BatchRules(STRICT)
    with pytest.raises(KafkaError):
        rules.prepare(data, rules.open(data), NOON, None)


@given(st.data())
def test_a_batch_with_a_random_header_is_accepted_or_rejected_without_other_errors(data: st.DataObject) -> None:
    batch = bytearray(build_batch([(NOON, b"k", b"v", ())] * 3, codec=data.draw(st.sampled_from(list(Codec)))))
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(21, len(batch) - 1))] = data.draw(st.integers(0, 255))
    struct.pack_into(">I", batch, 17, _speedups.crc32c(bytes(batch[21:])))
    rules = BatchRules(STRICT)
    try:
        changed, header, _, _ = rules.prepare(bytes(batch), rules.open(bytes(batch)), NOON, 12)
    except KafkaError:
        return
    assert read_header(changed) == header
