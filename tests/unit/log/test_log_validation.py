"""What a batch must be like to be appended (PROTOCOL 4.3; TESTING R4, R8)."""

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
from ottla.protocol import _speedups
from ottla.protocol.record_batch import Codec, build_batch, control_batch, read_header, read_records
from tests.support.worlds.log_world import NOON, LogWorld

HOUR = 3_600_000
STRICT = TopicConfig(cleanup_policy=("compact",), compression_type="gzip")
"""Settings that make the broker look at every record."""


def refused(code: ErrorCode, act: Callable[[], Any]) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        act()
    assert caught.value.code is code
    return caught.value


def with_fields(batch: bytes, **fields: int) -> bytes:
    """The batch with other header fields and a right checksum."""
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


def test_exactly_one_batch_is_taken(world: LogWorld) -> None:
    batch = world.batch("a")
    refused(ErrorCode.INVALID_RECORD, lambda: world.log.append(b"", leader_epoch=0))
    refused(ErrorCode.INVALID_RECORD, lambda: world.log.append(batch + batch, leader_epoch=0))
    assert world.log.log_end_offset == 0
    assert world.log.size_bytes == 0


def test_part_of_a_batch_is_no_batch(world: LogWorld) -> None:
    batch = world.batch("hello")
    for length in (1, 12, 60, len(batch) - 1):
        refused(ErrorCode.INVALID_RECORD, partial(world.log.append, batch[:length], leader_epoch=0))


def test_one_wrong_byte_makes_a_batch_corrupt(world: LogWorld) -> None:
    batch = world.batch("hello")
    for position in range(21, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 1
        refused(ErrorCode.CORRUPT_MESSAGE, partial(world.log.append, damaged, leader_epoch=0))
    assert world.log.log_end_offset == 0


@pytest.mark.parametrize("magic", [0, 1])
def test_the_old_formats_are_refused(world: LogWorld, magic: int) -> None:
    batch = bytearray(world.batch("a"))
    batch[16] = magic
    refused(ErrorCode.INVALID_RECORD, lambda: world.log.append(batch, leader_epoch=0))


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
def test_what_only_the_broker_may_write_is_refused(world: LogWorld, fields: dict[str, int]) -> None:
    batch = with_fields(world.batch("a"), **fields)
    refused(ErrorCode.INVALID_RECORD, lambda: world.log.append(batch, leader_epoch=0))


def test_clients_may_not_write_markers(world: LogWorld) -> None:
    marker = control_batch(commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=NOON)
    refused(ErrorCode.INVALID_RECORD, lambda: world.log.append(marker, leader_epoch=0))
    world.log.append(marker, leader_epoch=0, origin=Origin.COORDINATOR)


def test_a_producer_must_send_sequences(world: LogWorld) -> None:
    batch = world.batch("a", producer_id=5, producer_epoch=0)
    refused(ErrorCode.INVALID_RECORD, lambda: world.log.append(batch, leader_epoch=0))
    world.log.append(batch, leader_epoch=0, origin=Origin.COORDINATOR)


def test_zstd_needs_a_produce_request_that_knows_it(world: LogWorld) -> None:
    batch = world.batch("a", codec=Codec.ZSTD)
    refused(
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        lambda: world.log.append(batch, leader_epoch=0, produce_version=6),
    )
    world.log.append(batch, leader_epoch=0, produce_version=7)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_refused(world: LogWorld, codec: int) -> None:
    batch = with_fields(world.batch("a"), attributes=codec)
    refused(ErrorCode.CORRUPT_MESSAGE, lambda: world.log.append(batch, leader_epoch=0))


def test_batches_are_stored_as_they_came(world: LogWorld) -> None:
    for codec in Codec:
        world.append("a", "b", codec=codec)
    assert [header.codec for header, _ in world.read_batches()] == list(Codec)


def test_a_batch_larger_than_the_topic_allows_is_refused(tmp_path: Path) -> None:
    size = len(LogWorld(tmp_path / "measure").batch("x" * 100))
    world = LogWorld(tmp_path, max_message_bytes=size)
    world.append("x" * 100)
    refused(ErrorCode.MESSAGE_TOO_LARGE, lambda: world.append("x" * 101))


def test_a_batch_larger_than_a_segment_is_refused(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, segment_bytes=150)
    refused(ErrorCode.RECORD_LIST_TOO_LARGE, lambda: world.append("x" * 100))
    assert world.append("x" * 50).base_offset == 0


def test_a_compacted_topic_takes_no_record_without_a_key(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, cleanup_policy=("compact",))
    error = refused(ErrorCode.INVALID_RECORD, lambda: world.append(("k", "1"), (None, "2"), ("k", "3"), (None, "4")))
    assert isinstance(error, InvalidRecord)
    assert [index for index, _ in error.record_errors] == [1, 3]
    assert world.append(("k", "1"), ("k", None)).last_offset == 1


def test_a_compressed_batch_is_looked_into_where_keys_are_needed(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, cleanup_policy=("compact",))
    refused(ErrorCode.INVALID_RECORD, lambda: world.append((None, "2"), codec=Codec.LZ4))
    garbage = with_fields(world.batch(("k", "1")), attributes=int(Codec.GZIP))
    refused(ErrorCode.CORRUPT_MESSAGE, lambda: world.log.append(garbage, leader_epoch=0))


def test_a_record_from_the_future_is_refused(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, message_timestamp_after_max_ms=HOUR)
    world.append("soon", timestamp=NOON + HOUR)
    error = refused(ErrorCode.INVALID_TIMESTAMP, lambda: world.append("later", timestamp=NOON + HOUR + 1))
    assert isinstance(error, InvalidRecord)
    assert [index for index, _ in error.record_errors] == [0]


def test_a_record_from_long_ago_is_refused_if_the_topic_says_so(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, message_timestamp_before_max_ms=HOUR)
    rows = [(NOON, None, b"now", ()), (NOON - HOUR - 1, None, b"old", ())]
    error = refused(ErrorCode.INVALID_TIMESTAMP, lambda: world.log.append(build_batch(rows), leader_epoch=0))
    assert isinstance(error, InvalidRecord)
    assert [index for index, _ in error.record_errors] == [1]
    world.append("old enough", timestamp=NOON - HOUR)


def test_a_record_without_a_timestamp_is_never_out_of_range(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, message_timestamp_before_max_ms=HOUR)
    assert world.append("timeless", timestamp=-1).base_offset == 0


def test_a_header_may_not_lie_about_the_future(world: LogWorld) -> None:
    batch = with_fields(world.batch("a"), max=NOON + 2 * HOUR)
    refused(ErrorCode.INVALID_TIMESTAMP, lambda: world.log.append(batch, leader_epoch=0))


def test_producers_may_not_claim_the_brokers_clock(world: LogWorld) -> None:
    batch = world.batch("a", log_append_time=True)
    refused(ErrorCode.INVALID_TIMESTAMP, lambda: world.log.append(batch, leader_epoch=0))


@pytest.mark.parametrize("codec", list(Codec))
def test_log_append_time_is_the_brokers(tmp_path: Path, codec: Codec) -> None:
    world = LogWorld(tmp_path, message_timestamp_type="LogAppendTime")
    appended = world.append("a", "b", timestamp=5, codec=codec)
    assert appended.log_append_time_ms == NOON
    assert [record.timestamp for record in world.records()] == [NOON, NOON]
    assert world.values() == ["a", "b"]


def test_a_duplicate_is_answered_with_the_time_it_was_first_appended(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, message_timestamp_type="LogAppendTime")
    world.produce(5, "a")
    world.now += 1000
    again = world.append("a", producer_id=5, producer_epoch=0, base_sequence=0)
    assert again.duplicate
    assert again.log_append_time_ms == NOON


@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("codec", list(Codec))
def test_the_broker_compresses_anew_where_the_topic_asks(tmp_path: Path, codec: Codec, target: str) -> None:
    world = LogWorld(tmp_path, compression_type=target)
    world.produce(5, *("value" * 20 for _ in range(10)), codec=codec)
    ((header, batch),) = world.read_batches()
    assert header.codec.name.lower() == ("none" if target == "uncompressed" else target)
    assert (header.producer_id, header.base_sequence, header.last_offset_delta) == (5, 0, 9)
    assert [record.value for record in read_records(batch)] == [b"value" * 20] * 10


def test_what_grew_by_compressing_anew_must_still_fit(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, compression_type="uncompressed", max_message_bytes=500)
    refused(ErrorCode.MESSAGE_TOO_LARGE, lambda: world.append("x" * 1000, codec=Codec.GZIP))


def test_records_out_of_place_are_found_when_the_batch_is_opened_anyway(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, cleanup_policy=("compact",))
    batch = bytearray(world.batch(("k", "1"), ("k", "2")))
    second = batch.index(b"\x02", 61 + 8)
    assert batch[second] == 2  # zigzag of 1: the second record's offset delta
    batch[second] = 0
    batch = bytearray(with_fields(bytes(batch)))
    refused(ErrorCode.INVALID_RECORD, lambda: world.log.append(batch, leader_epoch=0))


@given(st.binary(max_size=200))
def test_garbage_is_refused_with_a_kafka_error(data: bytes) -> None:
    rules = BatchRules(STRICT)
    with pytest.raises(KafkaError):
        rules.prepare(data, rules.open(data), NOON, None)


@given(st.data())
def test_a_batch_with_random_header_bytes_is_accepted_or_refused_but_never_breaks(data: st.DataObject) -> None:
    batch = bytearray(build_batch([(NOON, b"k", b"v", ())] * 3, codec=data.draw(st.sampled_from(list(Codec)))))
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(21, len(batch) - 1))] = data.draw(st.integers(0, 255))
    struct.pack_into(">I", batch, 17, _speedups.crc32c(bytes(batch[21:])))
    rules = BatchRules(STRICT)
    try:
        changed, header, _ = rules.prepare(bytes(batch), rules.open(bytes(batch)), NOON, 12)
    except KafkaError:
        return
    assert read_header(changed) == header
