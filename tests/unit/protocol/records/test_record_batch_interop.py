"""kafka-python and aiokafka read our batches, and we read theirs, with every codec."""

from typing import Any

import aiokafka.codec
import aiokafka.record.default_records as aiokafka_records
import kafka.codec
import kafka.record.default_records as kafka_python_records
import pytest
from aiokafka.record.control_record import ControlRecord as AiokafkaControlRecord
from kafka.record.memory_records import MemoryRecords

from ottla.protocol.records.batch_rewriting import rewrite
from ottla.protocol.records.record_batch import (
    Codec,
    build_batch,
    control_batch,
    iter_batches,
    open_batch,
    read_records,
)

NOW = 1_700_000_000_000
LIBRARIES = [
    pytest.param(kafka_python_records, id="kafka-python"),
    pytest.param(aiokafka_records, id="aiokafka"),
]
ROWS: list[Any] = [
    (NOW, b"key", b"value" * 40, []),
    (NOW + 1, None, b"no key" * 40, [("h", b"x"), ("ü", b""), ("null", None)]),
    (NOW + 100_000, b"tombstone", None, []),
    (NOW - 5, b"", b"", []),
    *[(NOW + n, b"key %d" % n, b"value %d" % n * 30, [("n", b"%d" % n)]) for n in range(3000)],
]


def has_codec(library: Any, codec: Codec) -> bool:
    """Whether the other client has the package that it needs for a codec."""
    known = kafka.codec if library is kafka_python_records else aiokafka.codec
    return codec is Codec.NONE or bool(getattr(known, f"has_{codec.name.lower()}")())


def need_codec(library: Any, codec: Codec) -> None:
    if not has_codec(library, codec):
        pytest.skip(f"the other client lacks {codec.name.lower()} here")


def theirs(library: Any, codec: Codec, transactional: bool) -> bytes:
    builder = library.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=transactional,
        producer_id=77 if transactional else -1,
        producer_epoch=2 if transactional else -1,
        base_sequence=500 if transactional else -1,
        batch_size=100_000_000,
    )
    for index, (timestamp, key, value, headers) in enumerate(ROWS):
        assert builder.append(index, timestamp, key, value, headers) is not None
    return bytes(builder.build())


def read_by(library: Any, batch: bytes) -> list[tuple[Any, ...]]:
    reader = library.DefaultRecordBatch(bytearray(batch))
    assert reader.validate_crc()
    return [(item.offset, item.timestamp, item.key, item.value, list(item.headers)) for item in reader]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("transactional", [False, True])
def test_we_read_what_they_write(library: Any, codec: Codec, transactional: bool) -> None:
    need_codec(library, codec)
    batch = theirs(library, codec, transactional)
    header = open_batch(batch)
    assert (header.codec, header.record_count, header.last_offset) == (codec, len(ROWS), len(ROWS) - 1)
    assert (header.base_timestamp, header.max_timestamp) == (NOW, NOW + 100_000)
    expected = (True, 77, 2, 500) if transactional else (False, -1, -1, -1)
    assert (header.is_transactional, header.producer_id, header.producer_epoch, header.base_sequence) == expected
    assert [tuple(record) for record in read_records(batch)] == [
        (index, row[0], row[1], row[2], tuple(row[3])) for index, row in enumerate(ROWS)
    ]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("transactional", [False, True])
def test_they_read_what_we_write(library: Any, codec: Codec, transactional: bool) -> None:
    need_codec(library, codec)
    batch = build_batch(
        ROWS,
        base_offset=1000,
        codec=codec,
        transactional=transactional,
        producer_id=77,
        producer_epoch=2,
        base_sequence=500,
    )
    assert read_by(library, batch) == [(1000 + index, *row) for index, row in enumerate(ROWS)]
    reader = library.DefaultRecordBatch(bytearray(batch))
    assert reader.is_transactional == transactional
    assert (reader.producer_id, reader.producer_epoch, reader.base_sequence) == (77, 2, 500)


@pytest.mark.parametrize("library", LIBRARIES)
def test_uncompressed_batches_are_equal_to_the_byte(library: Any) -> None:
    ours = build_batch(ROWS, partition_leader_epoch=0)
    their_bytes = theirs(library, Codec.NONE, False)
    assert ours[16:] == their_bytes[16:]
    assert ours[:12] == their_bytes[:12]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("codec", Codec)
def test_they_read_what_compaction_leaves(library: Any, codec: Codec) -> None:
    need_codec(library, codec)
    batch = build_batch(ROWS, base_offset=1000, codec=codec)
    kept = rewrite(batch, keep_offsets={1001, 1003, 2000}, delete_horizon_ms=NOW + 1_000_000)
    assert read_by(library, kept) == [(1000 + index, *ROWS[index]) for index in (1, 3, 1000)]
    if library is kafka_python_records:
        assert library.DefaultRecordBatch(bytearray(kept)).next_offset == 1000 + len(ROWS)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("codec", Codec)
def test_they_read_log_append_time(library: Any, codec: Codec) -> None:
    need_codec(library, codec)
    batch = build_batch(ROWS, codec=codec, log_append_time=True)
    assert {item[1] for item in read_by(library, batch)} == {max(timestamp for timestamp, *_ in ROWS)}


@pytest.mark.parametrize("commit", [True, False])
def test_they_read_our_markers(commit: bool) -> None:
    batch = control_batch(commit=commit, producer_id=9, producer_epoch=1, coordinator_epoch=4, timestamp=NOW)
    (marker,) = kafka_python_records.DefaultRecordBatch(bytearray(batch))
    assert (marker.commit, marker.abort) == (commit, not commit)
    reader = aiokafka_records.DefaultRecordBatch(bytearray(batch))
    assert reader.is_control_batch
    (record,) = reader
    assert record.key is not None
    assert AiokafkaControlRecord.parse(record.key) == AiokafkaControlRecord(0, int(commit))


def test_several_fetched_batches_read_the_same() -> None:
    codecs = [codec for codec in Codec if has_codec(kafka_python_records, codec)]
    run = b"".join(build_batch(ROWS[:50], base_offset=50 * n, codec=codec) for n, codec in enumerate(codecs))
    cut = run[:-10]
    seen = []
    memory_records = MemoryRecords(cut)
    while memory_records.has_next():
        batch = memory_records.next_batch()
        seen += [(item.offset, item.value) for item in batch]
    ours = [(r.offset, r.value) for position, _ in iter_batches(cut) for r in read_records(cut, position)]
    assert seen == ours
    assert len(ours) == 50 * (len(codecs) - 1)
